// Managed memory: advice, prefetches, and their queries.
#include <cstring>
#include <vector>

#include "tests/parity/show.h"

namespace parity {
namespace {

#if CUDA_VERSION >= 13000  // older versions of these functions take a device
void advice(CUdeviceptr address, size_t bytes) {
  const CUmemLocation here{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, host{CU_MEM_LOCATION_TYPE_HOST, {0}},
      nowhere{CU_MEM_LOCATION_TYPE_DEVICE, {77}}, unknown{static_cast<CUmemLocationType>(42), {0}},
      node{CU_MEM_LOCATION_TYPE_HOST_NUMA, {0}};
  const auto show_all = [&] {
    for (int attribute = 0; attribute < 10; ++attribute) {
      int value[3] = {9, 9, 9};
      const size_t size = attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY ? sizeof value : sizeof value[0];
      const CUresult result =
          cuMemRangeGetAttribute(value, size, static_cast<CUmem_range_attribute>(attribute), address, bytes);
      std::printf("range attribute %d -> %s %d %d %d\n", attribute, name_of(result), value[0], value[1],
                  value[2]);
    }
  };
  show_all();
  SHOW(cuMemAdvise(address, bytes, CU_MEM_ADVISE_SET_READ_MOSTLY, here));
  SHOW(cuMemAdvise(address, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, here));
  SHOW(cuMemAdvise(address, bytes, CU_MEM_ADVISE_SET_ACCESSED_BY, host));
  SHOW(cuMemAdvise(address, bytes, CU_MEM_ADVISE_SET_ACCESSED_BY, here));
  show_all();
  SHOW(cuMemAdvise(address, 4096, CU_MEM_ADVISE_UNSET_READ_MOSTLY, here));
  SHOW(cuMemAdvise(address + 4096, 4096, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host));
  show_all();
  SHOW(cuMemAdvise(address, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, node));
  SHOW(cuMemAdvise(address, bytes, CU_MEM_ADVISE_UNSET_ACCESSED_BY, host));
  show_all();
  SHOW(cuMemAdvise(address, bytes, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, unknown));
  SHOW(cuMemAdvise(address, bytes, CU_MEM_ADVISE_SET_ACCESSED_BY, node));
  SHOW(cuMemAdvise(address, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, nowhere));
  SHOW(cuMemAdvise(address, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, unknown));
  SHOW(cuMemAdvise(address, bytes, static_cast<CUmem_advise>(0), here));
  SHOW(cuMemAdvise(address, bytes, static_cast<CUmem_advise>(99), here));
  SHOW(cuMemAdvise(address, 0, CU_MEM_ADVISE_SET_READ_MOSTLY, here));
  SHOW(cuMemAdvise(address, 2 * bytes, CU_MEM_ADVISE_SET_READ_MOSTLY, here));
  SHOW(cuMemAdvise(kWildAddress, bytes, CU_MEM_ADVISE_SET_READ_MOSTLY, here));
  int value = 0;
  SHOW(cuMemRangeGetAttribute(nullptr, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, address, bytes));
  SHOW(cuMemRangeGetAttribute(&value, 3, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, address, bytes));
  SHOW(cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, address, 0));
  SHOW(cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, address, 2 * bytes));
  SHOW(cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, kWildAddress, 4));
  int read_mostly = 9, preferred = 9;
  void* data[] = {&read_mostly, &preferred};
  size_t sizes[] = {4, 4};
  CUmem_range_attribute attributes[] = {CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY,
                                        CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION};
  SHOW_VALUE(cuMemRangeGetAttributes(data, sizes, attributes, 2, address, bytes), "%d %d", read_mostly,
             preferred);
  SHOW(cuMemRangeGetAttributes(data, sizes, attributes, 0, address, bytes));
  SHOW(cuMemRangeGetAttributes(nullptr, sizes, attributes, 2, address, bytes));
  SHOW(cuMemRangeGetAttributes(data, nullptr, attributes, 2, address, bytes));
  SHOW(cuMemRangeGetAttributes(data, sizes, nullptr, 2, address, bytes));
}

void prefetches(CUdeviceptr address, size_t bytes, CUstream stream) {
  const CUmemLocation here{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, host{CU_MEM_LOCATION_TYPE_HOST, {0}},
      nowhere{CU_MEM_LOCATION_TYPE_DEVICE, {77}};
  int where = 9;
  const auto show_last = [&] {
    SHOW_VALUE(
        cuMemRangeGetAttribute(&where, 4, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, address, bytes),
        "%d", where);
  };
  auto* const memory = reinterpret_cast<unsigned char*>(address);
  memory[5] = 6;
  SHOW(cuMemPrefetchAsync(address, bytes, here, 0, stream));
  show_last();
  SHOW(cuMemPrefetchAsync(address, bytes, host, 0, stream));
  show_last();
  SHOW(cuMemPrefetchAsync(address, 4096, here, 0, nullptr));
  show_last();
  SHOW(cuMemPrefetchAsync(address, bytes, here, 1, stream));
  SHOW(cuMemPrefetchAsync(address, bytes, nowhere, 0, stream));
  SHOW(cuMemPrefetchAsync(address, 0, here, 0, stream));
  SHOW(cuMemPrefetchAsync(address, 2 * bytes, here, 0, stream));
  SHOW(cuMemPrefetchAsync(kWildAddress, bytes, here, 0, stream));
  SHOW(cuMemPrefetchAsync(address, bytes, here, 0, wild<CUstream>()));
  CUdeviceptr parts[] = {address, address + bytes / 2};
  size_t sizes[] = {bytes / 2, bytes / 2};
  CUmemLocation places[] = {host, here};
  size_t firsts[] = {0, 1}, backwards[] = {1, 0};
  SHOW(cuMemPrefetchBatchAsync(parts, sizes, 2, places, firsts, 2, 0, stream));
  show_last();
  SHOW(cuMemPrefetchBatchAsync(parts, sizes, 2, places, firsts, 1, 0, stream));
  show_last();
  SHOW(cuMemPrefetchBatchAsync(parts, sizes, 2, places, firsts, 2, 0, nullptr));
  SHOW(cuMemPrefetchBatchAsync(parts, sizes, 2, places, firsts, 2, 1, stream));
  SHOW(cuMemPrefetchBatchAsync(parts, sizes, 2, places, backwards, 2, 0, stream));
  SHOW(cuMemPrefetchBatchAsync(parts, sizes, 0, places, firsts, 2, 0, stream));
  SHOW(cuMemPrefetchBatchAsync(parts, sizes, 1, places, firsts, 2, 0, stream));
  SHOW(cuMemPrefetchBatchAsync(nullptr, sizes, 2, places, firsts, 2, 0, stream));
  SHOW(cuMemPrefetchBatchAsync(parts, nullptr, 2, places, firsts, 2, 0, stream));
  SHOW(cuMemPrefetchBatchAsync(parts, sizes, 2, nullptr, firsts, 2, 0, stream));
  SHOW(cuMemPrefetchBatchAsync(parts, sizes, 2, places, nullptr, 2, 0, stream));
  SHOW(cuMemDiscardAndPrefetchBatchAsync(parts, sizes, 2, places, firsts, 2, 0, stream));
  SHOW(cuMemDiscardAndPrefetchBatchAsync(parts, sizes, 2, places, firsts, 2, 1, stream));
  SHOW(cuMemDiscardBatchAsync(parts, sizes, 2, 0, stream));
  SHOW(cuMemDiscardBatchAsync(parts, sizes, 2, 1, stream));
  SHOW(cuMemDiscardBatchAsync(parts, sizes, 0, 0, stream));
  SHOW(cuMemDiscardBatchAsync(parts, sizes, 2, 0, nullptr));
  parts[1] = kWildAddress;
  SHOW(cuMemDiscardBatchAsync(parts, sizes, 2, 0, stream));
  SHOW(cuMemPrefetchBatchAsync(parts, sizes, 2, places, firsts, 2, 0, stream));
  SHOW(cuStreamSynchronize(stream));
}
#else
void advice(CUdeviceptr, size_t) {}
void prefetches(CUdeviceptr, size_t, CUstream) {}
#endif

void attachment(CUdeviceptr address, size_t bytes, CUstream stream) {
  SHOW(cuStreamAttachMemAsync(stream, address, 0, CU_MEM_ATTACH_SINGLE));
  SHOW(cuStreamAttachMemAsync(stream, address, bytes, CU_MEM_ATTACH_HOST));
  SHOW(cuStreamAttachMemAsync(nullptr, address, 0, CU_MEM_ATTACH_GLOBAL));
  SHOW(cuStreamAttachMemAsync(nullptr, address, 0, CU_MEM_ATTACH_SINGLE));
  SHOW(cuStreamAttachMemAsync(stream, address, 0, 0));
  SHOW(cuStreamAttachMemAsync(stream, address, 0, 9));
  SHOW(cuStreamAttachMemAsync(stream, address, bytes / 2, CU_MEM_ATTACH_SINGLE));
  SHOW(cuStreamAttachMemAsync(stream, address + 4096, 0, CU_MEM_ATTACH_SINGLE));
  SHOW(cuStreamAttachMemAsync(stream, kWildAddress, 0, CU_MEM_ATTACH_SINGLE));
  SHOW(cuStreamAttachMemAsync(wild<CUstream>(), address, 0, CU_MEM_ATTACH_SINGLE));
}

}  // namespace

void managed_memory() {
  constexpr size_t kBytes = 1 << 20;
  CUdeviceptr address = 0, plain = 0;
  CUstream stream = nullptr;
  SHOW(cuStreamCreate(&stream, 0));
  SHOW(cuMemAllocManaged(nullptr, kBytes, CU_MEM_ATTACH_GLOBAL));
  SHOW(cuMemAllocManaged(&address, 0, CU_MEM_ATTACH_GLOBAL));
  SHOW(cuMemAllocManaged(&address, kBytes, 0));
  SHOW(cuMemAllocManaged(&address, kBytes, CU_MEM_ATTACH_SINGLE));
  SHOW(cuMemAllocManaged(&address, kBytes, CU_MEM_ATTACH_GLOBAL | CU_MEM_ATTACH_HOST));
  SHOW(cuMemAllocManaged(&address, size_t{1} << 50, CU_MEM_ATTACH_GLOBAL));
  SHOW(cuMemAllocManaged(&address, ~size_t{0}, CU_MEM_ATTACH_GLOBAL));
  SHOW(cuMemAllocManaged(&address, kBytes, CU_MEM_ATTACH_GLOBAL));
  SHOW(cuMemAlloc(&plain, kBytes));
  std::vector<unsigned char> host(kBytes, 3);
  auto* const memory = reinterpret_cast<unsigned char*>(address);
  std::memset(memory, 1, kBytes);
  SHOW(cuMemsetD8(address + 100, 2, 100));
  SHOW(cuCtxSynchronize());
  std::printf("%d %d %d %d\n", memory[99], memory[100], memory[199], memory[200]);
  SHOW(cuMemcpyHtoD(address, host.data(), 1000));
  SHOW(cuMemcpyDtoD(plain, address, kBytes));
  SHOW(cuMemcpyDtoH(host.data(), plain, kBytes));
  std::printf("%d %d %d\n", host[999], host[1000], memory[999]);
  SHOW(cuMemcpyDtoH(host.data(), address, kBytes + 1));
  SHOW(cuMemcpy(address, plain, kBytes));
  SHOW(cuMemcpyHtoD(plain, memory, kBytes));
  CUdeviceptr base = 0;
  size_t size = 0;
  SHOW_VALUE(cuMemGetAddressRange(&base, &size, address + 5000), "%llu %zu", base - address, size);
  show_pointer_attributes("managed", address + 100);
  advice(address, kBytes);
  prefetches(address, kBytes, stream);
  attachment(address, kBytes, stream);
  int where = 0;
  SHOW(cuMemRangeGetAttribute(&where, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, plain, kBytes));
#if CUDA_VERSION >= 13000
  SHOW(cuMemAdvise(plain, kBytes, CU_MEM_ADVISE_SET_READ_MOSTLY,
                   CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, {0}}));
  SHOW(cuMemPrefetchAsync(plain, kBytes, CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, 0, stream));
#endif
  SHOW(cuStreamAttachMemAsync(stream, plain, 0, CU_MEM_ATTACH_SINGLE));
  SHOW(cuMemFree(address + 4096));
  SHOW(cuMemFree(address));
  SHOW(cuMemFree(address));
  SHOW(cuMemFree(plain));
  // Pinned memory that kernels can access.
  void* pinned = nullptr;
  CUdeviceptr device = 0;
  SHOW(cuMemHostAlloc(&pinned, 10'000, CU_MEMHOSTALLOC_DEVICEMAP));
  SHOW_VALUE(cuMemHostGetDevicePointer(&device, static_cast<char*>(pinned) + 100, 0), "%lld",
             static_cast<long long>(device - reinterpret_cast<CUdeviceptr>(pinned)));
  SHOW(cuMemsetD8(device, 7, 10));
  SHOW(cuCtxSynchronize());
  std::printf("%d %d\n", static_cast<char*>(pinned)[109], static_cast<char*>(pinned)[110]);
  SHOW(cuMemFreeHost(pinned));
  SHOW(cuMemHostGetDevicePointer(&device, pinned, 0));
}

}  // namespace parity
