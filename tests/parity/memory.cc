// Device memory, host memory, virtual memory, pools.
#include <cstdlib>
#include <vector>

#include "tests/parity/show.h"

namespace parity {
namespace {

constexpr size_t kBytes = 1 << 20;

void show_copy(const char* what, CUDA_MEMCPY2D copy) {
  SHOW_NAMED(cuMemcpy2D(&copy), (std::string("2D copy, ") + what).c_str());
}
void show_copy(const char* what, CUDA_MEMCPY3D copy) {
  SHOW_NAMED(cuMemcpy3D(&copy), (std::string("3D copy, ") + what).c_str());
}

void boxes(CUdeviceptr address, void* host) {
  CUDA_MEMCPY2D flat{};
  flat.srcMemoryType = CU_MEMORYTYPE_HOST, flat.srcHost = host, flat.srcPitch = 128;
  flat.dstMemoryType = CU_MEMORYTYPE_DEVICE, flat.dstDevice = address, flat.dstPitch = 256;
  flat.WidthInBytes = 100, flat.Height = 10;
  show_copy("good", flat);
  SHOW(cuMemcpy2D(nullptr));
  SHOW(cuMemcpy2DAsync(&flat, wild<CUstream>()));
  const auto changed = [&](const char* what, auto&& change) {
    CUDA_MEMCPY2D copy = flat;
    change(copy);
    show_copy(what, copy);
  };
  changed("no width", [](auto& c) { c.WidthInBytes = 0; });
  changed("no height", [](auto& c) { c.Height = 0; });
  changed("source pitch too small", [](auto& c) { c.srcPitch = 99; });
  changed("destination pitch too small", [](auto& c) { c.dstPitch = 99; });
  changed("pitch 0", [](auto& c) { c.srcPitch = c.dstPitch = 0; });
  changed("null host", [](auto& c) { c.srcHost = nullptr; });
  changed("null device", [](auto& c) { c.dstDevice = 0; });
  changed("wild device", [](auto& c) { c.dstDevice = kWildAddress; });
  changed("beyond the end", [](auto& c) { c.Height = 5000; });
  changed("far beyond the end", [](auto& c) { c.dstY = size_t{1} << 60; });
  changed("offset beyond the end", [](auto& c) {
    c.dstXInBytes = kBytes;
    c.dstPitch = 2 * kBytes;
  });
  changed("unknown memory type", [](auto& c) { c.srcMemoryType = static_cast<CUmemorytype>(9); });
  changed("unified", [&](auto& c) { c.dstMemoryType = CU_MEMORYTYPE_UNIFIED; });
  CUDA_MEMCPY3D box{};
  box.srcMemoryType = CU_MEMORYTYPE_DEVICE, box.srcDevice = address, box.srcPitch = 128, box.srcHeight = 10;
  box.dstMemoryType = CU_MEMORYTYPE_DEVICE, box.dstDevice = address + kBytes / 2, box.dstPitch = 256,
  box.dstHeight = 20;
  box.WidthInBytes = 100, box.Height = 10, box.Depth = 3;
  show_copy("good", box);
  SHOW(cuMemcpy3D(nullptr));
  const auto changed_box = [&](const char* what, auto&& change) {
    CUDA_MEMCPY3D copy = box;
    change(copy);
    show_copy(what, copy);
  };
  changed_box("no depth", [](auto& c) { c.Depth = 0; });
  changed_box("height too small", [](auto& c) { c.srcHeight = 5; });
  changed_box("LOD", [](auto& c) { c.srcLOD = 1; });
  changed_box("null device", [](auto& c) { c.dstDevice = 0; });
  changed_box("beyond the end", [](auto& c) { c.Depth = 3000; });
  changed_box("far beyond the end", [](auto& c) { c.srcZ = size_t{1} << 50; });
}

void pointers(CUdeviceptr address, void* host) {
  show_pointer_attributes("device", address + 100);
  show_pointer_attributes("host", reinterpret_cast<CUdeviceptr>(host));
  show_pointer_attributes("wild", kWildAddress);
  show_pointer_attributes("null", 0);
  void* pinned = nullptr;
  cuMemHostAlloc(&pinned, 1 << 16, 0);
  show_pointer_attributes("pinned", reinterpret_cast<CUdeviceptr>(pinned) + 100);
  cuMemFreeHost(pinned);
  unsigned long long ids[3] = {};
  CUdeviceptr other = 0;
  cuMemAlloc(&other, 4096);
  const CUdeviceptr places[] = {address, address + 100, other};
  for (int i = 0; i < 3; ++i) SHOW(cuPointerGetAttribute(&ids[i], CU_POINTER_ATTRIBUTE_BUFFER_ID, places[i]));
  std::printf("one buffer's id: %d, another's: %d\n", ids[0] == ids[1], ids[0] == ids[2]);
  cuMemFree(other);
  SHOW(cuPointerGetAttribute(nullptr, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  unsigned type = 9;
  size_t size = 9;
  void* data[] = {&type, &size};
  SHOW_VALUE(cuPointerGetAttributes(2, attributes, data, address), "%u %zu", type, size);
  SHOW_VALUE(cuPointerGetAttributes(2, attributes, data, kWildAddress), "%u %zu", type, size);
  SHOW(cuPointerGetAttributes(0, attributes, data, address));
  SHOW(cuPointerGetAttributes(2, nullptr, data, address));
  SHOW(cuPointerGetAttributes(2, attributes, nullptr, address));
  int flag = 1;
  SHOW(cuPointerSetAttribute(&flag, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address));
  SHOW(cuPointerSetAttribute(&flag, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, kWildAddress));
  SHOW(cuPointerSetAttribute(&flag, CU_POINTER_ATTRIBUTE_CONTEXT, address));
  SHOW(cuPointerSetAttribute(nullptr, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address));
}

}  // namespace

void device_memory() {
  CUdeviceptr address = 0, other = 0, base = 0;
  size_t size = 0, pitch = 0, free = 0, total = 0;
  std::vector<char> bytes(2 * kBytes);
  void* host = bytes.data();
  SHOW(cuMemAlloc(nullptr, 64));
  SHOW(cuMemAlloc(&address, 0));
  SHOW(cuMemAlloc(&address, size_t{1} << 40));
  SHOW(cuMemAlloc(&address, ~size_t{0}));
  SHOW(cuMemAlloc(&address, ~size_t{0} - 5000));
  SHOW(cuMemAlloc(&address, kBytes));
  SHOW(cuMemAlloc(&other, 1));
  SHOW_VALUE(cuMemGetAddressRange(&base, &size, address + 5000), "%llu %zu", base - address, size);
  SHOW_VALUE(cuMemGetAddressRange(nullptr, &size, address), "%zu", size);
  SHOW(cuMemGetAddressRange(nullptr, nullptr, address));
  SHOW(cuMemGetAddressRange(&base, &size, kWildAddress));
  SHOW(cuMemGetAddressRange(&base, &size, 0));
  SHOW(cuMemGetInfo(nullptr, &total));
  SHOW(cuMemGetInfo(&free, nullptr));
  SHOW_VALUE(cuMemGetInfo(&free, &total), "%zu", total);
  SHOW(cuMemFree(0));
  SHOW(cuMemFree(address + 512));
  SHOW(cuMemFree(kWildAddress));
  SHOW(cuMemFree(kHighAddress));
  SHOW(cuMemFree(reinterpret_cast<CUdeviceptr>(host)));
  SHOW(cuMemAllocPitch(nullptr, &pitch, 100, 10, 4));
  SHOW(cuMemAllocPitch(&base, nullptr, 100, 10, 4));
  SHOW(cuMemAllocPitch(&base, &pitch, 0, 10, 4));
  SHOW(cuMemAllocPitch(&base, &pitch, 100, 0, 4));
  SHOW(cuMemAllocPitch(&base, &pitch, 100, 10, 5));
  SHOW(cuMemAllocPitch(&base, &pitch, ~size_t{0} / 2, 10, 4));
  SHOW_VALUE(cuMemAllocPitch(&base, &pitch, 100, 10, 4), "%zu", pitch);
  SHOW(cuMemFree(base));
  SHOW(cuMemFree(base));
  SHOW(cuMemsetD8(address, 1, kBytes));
  SHOW(cuMemsetD8(address, 1, kBytes + 1));
  SHOW(cuMemsetD8(0, 1, 1));
  SHOW(cuMemsetD8(kWildAddress, 1, 1));
  SHOW(cuMemsetD8(kHighAddress, 1, 0x2000));
  SHOW_UNLESS_GUARDED(cuMemsetD8(address, 1, ~size_t{0}));  // NVIDIA's driver begins these, and faults
  SHOW(cuMemsetD8(address, 1, 0));
  SHOW(cuMemsetD8(kWildAddress, 1, 0));
  SHOW(cuMemsetD16(address + 1, 1, 1));
  SHOW(cuMemsetD16(address, 1, kBytes / 2 + 1));
  SHOW(cuMemsetD32(address + 2, 1, 1));
  SHOW_UNLESS_GUARDED(cuMemsetD32(address, 1, ~size_t{0} / 4));
  SHOW_UNLESS_GUARDED(cuMemsetD32(address, 1, size_t{1} << 62));
  SHOW(cuMemsetD8Async(address, 1, 10, wild<CUstream>()));
  SHOW(cuMemsetD2D8(address, 256, 1, 100, 10));
  SHOW(cuMemsetD2D8(address, 50, 1, 100, 10));
  SHOW(cuMemsetD2D8(address, 256, 1, 0, 10));
  SHOW(cuMemsetD2D8(address, 256, 1, 100, 0));
  SHOW(cuMemsetD2D8(address, 256, 1, 100, 5000));
  SHOW(cuMemsetD2D8(address, size_t{1} << 60, 1, 100, 50));
  SHOW(cuMemsetD2D16(address, 255, 1, 10, 10));
  SHOW(cuMemsetD2D32(address, 256, 1, 100, 10));
  SHOW(cuMemsetD2D32(address, 254, 1, 10, 10));
  SHOW(cuMemcpyHtoD(address, host, kBytes));
  SHOW(cuMemcpyHtoD(address, host, kBytes + 1));
  SHOW(cuMemcpyHtoD(address, nullptr, 4));
  SHOW(cuMemcpyHtoD(0, host, 4));
  SHOW(cuMemcpyHtoD(kWildAddress, host, 4));
  SHOW(cuMemcpyHtoD(address, host, 0));
  SHOW(cuMemcpyHtoD(0, nullptr, 0));
  SHOW(cuMemcpyHtoD(kHighAddress, host, 0x2000));
  SHOW(cuMemcpyHtoDAsync(address, host, 4, wild<CUstream>()));
  SHOW(cuMemcpyDtoH(host, address, kBytes));
  SHOW(cuMemcpyDtoH(host, address, kBytes + 1));
  SHOW(cuMemcpyDtoH(nullptr, address, 4));
  SHOW(cuMemcpyDtoH(host, 0, 4));
  SHOW(cuMemcpyDtoH(host, kWildAddress, 4));
  SHOW(cuMemcpyDtoH(host, address, 0));
  SHOW(cuMemcpyDtoHAsync(host, address, 4, wild<CUstream>()));
  SHOW(cuMemcpyDtoD(address, address + 100, 50));
  SHOW(cuMemcpyDtoD(address, address + 20, 50));
  SHOW(cuMemcpyDtoD(address, kWildAddress, 50));
  SHOW(cuMemcpyDtoD(kWildAddress, address, 50));
  SHOW(cuMemcpyDtoD(address, address, kBytes + 1));
  SHOW(cuMemcpyDtoD(address, other, 0));
  SHOW(cuMemcpyDtoDAsync(address, address + 100, 50, wild<CUstream>()));
  SHOW(cuMemcpy(address, reinterpret_cast<CUdeviceptr>(host), 100));
  SHOW(cuMemcpy(reinterpret_cast<CUdeviceptr>(host), address, 100));
  SHOW(cuMemcpy(reinterpret_cast<CUdeviceptr>(host), reinterpret_cast<CUdeviceptr>(host) + 500, 100));
  SHOW(cuMemcpy(address, address + 500, 100));
  SHOW(cuMemcpy(address, 0, 4));
  SHOW(cuMemcpy(0, address, 4));
  SHOW(cuMemcpy(address, reinterpret_cast<CUdeviceptr>(host), kBytes + 1));
  SHOW(cuMemcpyAsync(address, address + 500, 100, wild<CUstream>()));
  CUcontext context = nullptr;
  cuCtxGetCurrent(&context);
  SHOW(cuMemcpyPeer(address, context, address + 500, context, 100));
  SHOW(cuMemcpyPeer(address, nullptr, address + 500, context, 100));
  SHOW(cuMemcpyPeer(address, context, address + 500, wild<CUcontext>(), 100));
  SHOW(cuMemcpyPeer(kWildAddress, context, address, context, 100));
  boxes(address, host);
  pointers(address, host);
  SHOW(cuMemFree(address));
  SHOW(cuMemFree(address));
  SHOW(cuMemsetD8(address, 1, 1));
  SHOW(cuMemcpyDtoH(host, address, 1));
  SHOW(cuMemFree(other));
  SHOW(cuCtxSynchronize());
}

void host_memory() {
  void* memory = nullptr;
  unsigned flags = 99;
  CUdeviceptr device = 0;
  SHOW(cuMemHostAlloc(nullptr, 64, 0));
  SHOW(cuMemHostAlloc(&memory, 0, 0));
  SHOW(cuMemHostAlloc(&memory, 64, 0xff00));
  SHOW(cuMemHostAlloc(&memory, size_t{1} << 50, 0));
  SHOW(cuMemHostAlloc(&memory, ~size_t{0}, 0));
  SHOW(cuMemAllocHost(nullptr, 64));
  SHOW(cuMemAllocHost(&memory, 0));
  SHOW(cuMemHostAlloc(&memory, 10'000, CU_MEMHOSTALLOC_PORTABLE));
  SHOW_VALUE(cuMemHostGetFlags(&flags, memory), "%u", flags & CU_MEMHOSTALLOC_PORTABLE);
  SHOW(cuMemHostGetFlags(nullptr, memory));
  SHOW(cuMemHostGetFlags(&flags, nullptr));
  SHOW(cuMemHostGetFlags(&flags, &flags));
  SHOW(cuMemHostGetDevicePointer(nullptr, memory, 0));
  SHOW(cuMemHostGetDevicePointer(&device, memory, 9));
  SHOW(cuMemHostGetDevicePointer(&device, &flags, 0));
  SHOW(cuMemFreeHost(nullptr));
  SHOW(cuMemFreeHost(&flags));
  SHOW(cuMemFreeHost(static_cast<char*>(memory) + 64));
  SHOW(cuMemHostUnregister(memory));
  SHOW(cuMemHostRegister(memory, 100, 0));
  SHOW(cuMemFreeHost(memory));
  SHOW(cuMemFreeHost(memory));
  std::vector<char> own(100'000);
  SHOW(cuMemHostRegister(nullptr, 64, 0));
  SHOW(cuMemHostRegister(own.data(), 0, 0));
  SHOW(cuMemHostRegister(own.data(), 64, 0xff00));
  SHOW(cuMemHostRegister(own.data(), own.size(), CU_MEMHOSTREGISTER_PORTABLE));
  SHOW(cuMemHostRegister(own.data(), own.size(), 0));
  SHOW(cuMemHostRegister(own.data() + 8192, 4096, 0));
  SHOW(cuMemHostGetDevicePointer(&device, own.data(), 0));
  SHOW(cuMemsetD8(device, 3, 10));
  SHOW(cuMemsetD8(device + own.size() - 4, 3, 5));
  SHOW(cuCtxSynchronize());
  SHOW_VALUE(cuMemHostGetFlags(&flags, own.data()), "%u, %d %d", flags, own[9], own[10]);
  SHOW(cuMemHostGetDevicePointer(&device, own.data() + own.size(), 0));
  SHOW(cuMemFreeHost(own.data()));
  SHOW(cuMemHostUnregister(nullptr));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuMemHostUnregister(own.data() + 4096));
  void* pinned = nullptr;
  REQUIRE(CUDA_SUCCESS, cuMemAllocHost(&pinned, 64));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuMemHostUnregister(pinned));
  REQUIRE(CUDA_SUCCESS, cuMemFreeHost(pinned));
  SHOW(cuMemHostUnregister(own.data()));
  REQUIRE(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(own.data()));
  int access = -1;
  SHOW(
      cuMemHostRegister(own.data(), own.size(), CU_MEMHOSTREGISTER_READ_ONLY | CU_MEMHOSTREGISTER_DEVICEMAP));
  SHOW(cuMemHostGetDevicePointer(&device, own.data(), 0));
  SHOW_VALUE(cuPointerGetAttribute(&access, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS,
                                   reinterpret_cast<CUdeviceptr>(own.data())),
             "%d", access);
  EXPECT(access == CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ);
  SHOW(cuMemHostUnregister(own.data()));
}

void virtual_memory() {
  size_t granularity = 0;
  CUdeviceptr range = 0, second = 0;
  CUmemGenericAllocationHandle memory = 0, other = 0;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemAllocationProp bad = prop;
  bad.location.id = 9;
  SHOW(cuMemGetAllocationGranularity(nullptr, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  SHOW(cuMemGetAllocationGranularity(&granularity, nullptr, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  SHOW(cuMemGetAllocationGranularity(&granularity, &bad, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  SHOW(cuMemGetAllocationGranularity(&granularity, &prop, static_cast<CUmemAllocationGranularity_flags>(7)));
  SHOW_VALUE(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED), "%zu",
             granularity);
  SHOW_VALUE(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM), "%zu",
             granularity);
  const size_t size = 4 * granularity;
  SHOW(cuMemAddressReserve(nullptr, size, 0, 0, 0));
  SHOW(cuMemAddressReserve(&range, 0, 0, 0, 0));
  SHOW(cuMemAddressReserve(&range, size + 1, 0, 0, 0));
  SHOW(cuMemAddressReserve(&range, size, 3, 0, 0));
  SHOW(cuMemAddressReserve(&range, size, 0, 0, 77));
  SHOW(cuMemAddressReserve(&range, size_t{1} << 60, 0, 0, 0));
  SHOW(cuMemAddressReserve(&range, size, 0, 0, 0));
  SHOW_VALUE(cuMemAddressReserve(&second, granularity, 64 * granularity, 0, 0), "%d",
             second % (64 * granularity) == 0);
  SHOW(cuMemAddressFree(second, granularity));
  SHOW(cuMemAddressFree(second, granularity));
  SHOW(cuMemCreate(nullptr, granularity, &prop, 0));
  SHOW(cuMemCreate(&memory, 0, &prop, 0));
  SHOW(cuMemCreate(&memory, granularity + 1, &prop, 0));
  SHOW(cuMemCreate(&memory, granularity, nullptr, 0));
  SHOW(cuMemCreate(&memory, granularity, &bad, 0));
  SHOW(cuMemCreate(&memory, granularity, &prop, 77));
  SHOW(cuMemCreate(&memory, size_t{1} << 50, &prop, 0));
  SHOW(cuMemCreate(&memory, 2 * granularity, &prop, 0));
  SHOW(cuMemCreate(&other, granularity, &prop, 0));
  SHOW(cuMemGetAllocationPropertiesFromHandle(nullptr, memory));
  CUmemAllocationProp back{};
  SHOW_VALUE(cuMemGetAllocationPropertiesFromHandle(&back, memory), "%d %d %d", back.type, back.location.type,
             back.location.id);
  SHOW(cuMemGetAllocationPropertiesFromHandle(&back, 0xdeadbee0));
  SHOW(cuMemMap(range, granularity, 0, 0xdeadbee0, 0));
  SHOW(cuMemMap(range, granularity, 0, 0, 0));
  SHOW(cuMemMap(range, 4 * granularity, 0, memory, 0));
  SHOW(cuMemMap(range + 1, granularity, 0, memory, 0));
  SHOW(cuMemMap(range, granularity + 1, 0, memory, 0));
  SHOW(cuMemMap(range, 0, 0, memory, 0));
  SHOW(cuMemMap(range, granularity, granularity + 1, memory, 0));
  SHOW(cuMemMap(range, granularity, 0, memory, 77));
  SHOW(cuMemMap(kWildAddress, granularity, 0, memory, 0));
  SHOW(cuMemMap(range + size, granularity, 0, memory, 0));
  SHOW(cuMemMap(range, 2 * granularity, 0, memory, 0));
  SHOW(cuMemMap(range, granularity, 0, other, 0));
  const auto show_access = [&](int expected) {
    int seen = -1;
    SHOW_VALUE(cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, range), "%d", seen);
    EXPECT(seen == expected);
  };
  show_access(CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);
  CUmemAccessDesc access{};
  access.location = prop.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUmemAccessDesc bad_access = access;
  bad_access.location.id = 9;
  unsigned long long flags = 0;
  LATE(cuMemsetD8(range, 1, 10));
  SHOW(cuMemSetAccess(range, 2 * granularity, nullptr, 1));
  SHOW(cuMemSetAccess(range, 2 * granularity, &access, 0));
  SHOW(cuMemSetAccess(range, 2 * granularity, &bad_access, 1));
  LATE(cuMemSetAccess(range, 3 * granularity, &access, 1));
  LATE(cuMemSetAccess(range, granularity + 1, &access, 1));
  SHOW(cuMemSetAccess(kWildAddress, granularity, &access, 1));
  CUmemAccessDesc reading = access;
  reading.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  SHOW(cuMemSetAccess(range, 2 * granularity, &reading, 1));
  show_access(CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ);
  SHOW(cuMemSetAccess(range, 2 * granularity, &access, 1));
  show_access(CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
  SHOW_VALUE(cuMemGetAccess(&flags, &access.location, range), "%llu", flags);
  SHOW(cuMemGetAccess(nullptr, &access.location, range));
  SHOW(cuMemGetAccess(&flags, nullptr, range));
  SHOW(cuMemGetAccess(&flags, &access.location, kWildAddress));
  SHOW(cuMemsetD8(range, 1, 10));
  LATE(cuMemsetD8(range, 1, 2 * granularity + 1));
  SHOW(cuMemFree(range));
  SHOW(cuMemRetainAllocationHandle(&other, wild<void*>()));
  SHOW(cuMemRetainAllocationHandle(nullptr, reinterpret_cast<void*>(range)));
  SHOW(cuMemUnmap(range, granularity));
  SHOW(cuMemUnmap(range + 2 * granularity, granularity));
  SHOW_UNLESS_GUARDED(cuMemUnmap(range, 2 * granularity + 1));  // NVIDIA's driver takes it
  SHOW(cuMemUnmap(kWildAddress, granularity));
  SHOW(cuMemAddressFree(range, size));
  SHOW(cuMemUnmap(range, 2 * granularity));
  SHOW(cuMemUnmap(range, 2 * granularity));
  SHOW(cuMemRelease(memory));
  SHOW(cuMemRelease(memory));
  SHOW(cuMemRelease(0));
  SHOW(cuMemRelease(0xdeadbee0));
  SHOW(cuMemMap(range, granularity, 0, memory, 0));
  SHOW(cuMemRelease(other));
  SHOW(cuMemAddressFree(range + granularity, granularity));
  SHOW(cuMemAddressFree(range, 2 * granularity));
  SHOW(cuMemAddressFree(kWildAddress, granularity));
  SHOW(cuMemAddressFree(range, size));
  SHOW(cuMemAddressFree(range, size));
}

void memory_pools() {
  CUmemoryPool pool = nullptr, own = nullptr;
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemPoolProps bad = props;
  bad.location.id = 9;
  CUdeviceptr address = 0;
  int flag = -1;
  cuuint64_t number = 0;
  CUstream stream = nullptr;
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  SHOW(cuDeviceGetDefaultMemPool(&pool, 0));
  SHOW(cuMemPoolCreate(nullptr, &props));
  SHOW(cuMemPoolCreate(&own, nullptr));
  SHOW(cuMemPoolCreate(&own, &bad));
  bad = props;
  bad.allocType = CU_MEM_ALLOCATION_TYPE_INVALID;
  SHOW(cuMemPoolCreate(&own, &bad));
  SHOW(cuMemPoolCreate(&own, &props));
  for (int attribute = 0; attribute < 12; ++attribute) {
    number = 0;
    const CUresult result = cuMemPoolGetAttribute(own, static_cast<CUmemPool_attribute>(attribute), &number);
    std::printf("pool attribute %d -> %s %llu\n", attribute, name_of(result),
                static_cast<unsigned long long>(number));
  }
  SHOW(cuMemPoolGetAttribute(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, nullptr));
  SHOW(cuMemPoolGetAttribute(nullptr, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &number));
  SHOW(cuMemPoolGetAttribute(wild<CUmemoryPool>(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &number));
  number = 12345;
  SHOW(cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &number));
  SHOW_VALUE(cuMemPoolGetAttribute(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &number), "%llu",
             static_cast<unsigned long long>(number));
  flag = 0;
  SHOW(cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, &flag));
  SHOW(cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, nullptr));
  SHOW(cuMemPoolSetAttribute(own, static_cast<CUmemPool_attribute>(77), &number));
  SHOW(cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &number));
  SHOW(cuMemPoolDestroy(nullptr));
  SHOW(cuMemPoolDestroy(wild<CUmemoryPool>()));
  SHOW(cuMemPoolDestroy(pool));
  SHOW(cuMemPoolTrimTo(own, 0));
  SHOW(cuMemPoolTrimTo(wild<CUmemoryPool>(), 0));
  SHOW(cuDeviceSetMemPool(9, own));
  SHOW(cuDeviceSetMemPool(0, wild<CUmemoryPool>()));
  SHOW(cuMemAllocAsync(nullptr, 64, stream));
  SHOW(cuMemAllocAsync(&address, 0, stream));
  SHOW(cuMemAllocAsync(&address, size_t{1} << 40, stream));
  SHOW(cuMemAllocAsync(&address, 64, wild<CUstream>()));
  SHOW(cuMemAllocAsync(&address, 4096, stream));
  SHOW(cuMemFreeAsync(address, wild<CUstream>()));
  SHOW(cuMemFreeAsync(address + 512, stream));
  SHOW(cuMemFreeAsync(address, stream));
  SHOW(cuMemFreeAsync(address, stream));
  SHOW(cuMemFreeAsync(kWildAddress, stream));
  SHOW(cuMemFreeAsync(0, stream));
  SHOW(cuMemAllocFromPoolAsync(&address, 4096, wild<CUmemoryPool>(), stream));
  SHOW(cuMemAllocFromPoolAsync(&address, 4096, nullptr, stream));
  SHOW(cuMemAllocFromPoolAsync(&address, 4096, own, stream));
  SHOW(cuStreamSynchronize(stream));
  const auto tell = [&](CUmemPool_attribute attribute) {
    SHOW_VALUE(cuMemPoolGetAttribute(own, attribute, &number), "%llu",
               static_cast<unsigned long long>(number));
  };
  tell(CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
  tell(CU_MEMPOOL_ATTR_USED_MEM_HIGH);
  cuMemPoolGetAttribute(own, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &number);
  std::printf("reserved for it: %d\n", number >= 4096);
  SHOW(cuMemFree(address));
  tell(CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
  tell(CU_MEMPOOL_ATTR_USED_MEM_HIGH);
  number = 1;
  SHOW(cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &number));
  number = 0;
  SHOW(cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &number));
  tell(CU_MEMPOOL_ATTR_USED_MEM_HIGH);
  SHOW(cuMemPoolDestroy(own));
  SHOW(cuMemPoolDestroy(own));
  SHOW(cuMemAllocFromPoolAsync(&address, 4096, own, stream));
  SHOW(cuStreamSynchronize(stream));
}

}  // namespace parity
