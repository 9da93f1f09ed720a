// Virtual memory management, memory pools, stream-ordered allocation.
#include "tests/e2e/apps/scenario.h"

using namespace app;

SCENARIO(virtual_memory) {
  Device device;
  Kernels kernels;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device.device;
  size_t granularity = 0;
  OK(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  std::printf("granularity %zu\n", granularity);
  CUdeviceptr range = 0;
  OK(cuMemAddressReserve(&range, 4 * granularity, 0, 0, 0));
  CUmemGenericAllocationHandle memory[2] = {};
  for (auto& handle : memory) OK(cuMemCreate(&handle, granularity, &prop, 0));
  CUmemAccessDesc access{};
  access.location = prop.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  // The same memory mapped at two addresses.
  OK(cuMemMap(range, granularity, 0, memory[0], 0));
  OK(cuMemMap(range + granularity, granularity, 0, memory[1], 0));
  OK(cuMemMap(range + 2 * granularity, granularity, 0, memory[0], 0));
  OK(cuMemSetAccess(range, 3 * granularity, &access, 1));
  unsigned long long flags = 0;
  OK(cuMemGetAccess(&flags, &access.location, range));
  EXPECT(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  // One copy or fill may span several mappings, as in PyTorch's expandable segments.
  const CUdeviceptr across = range + granularity / 2;
  std::vector<uint32_t> given(granularity / 4);
  for (uint32_t i = 0; i < given.size(); ++i) given[i] = 7 * i;
  OK(cuMemcpyHtoD(across, given.data(), granularity));
  EXPECT(download<uint32_t>(across, given.size()) == given);
  OK(cuMemcpyDtoD(across + granularity, across, granularity));
  EXPECT(download<uint32_t>(across + granularity, given.size()) == given);
  OK(cuMemsetD32(across, 5, granularity / 4));
  EXPECT(download<uint32_t>(across, given.size()) == std::vector<uint32_t>(given.size(), 5));
  GIVES(CUDA_ERROR_INVALID_VALUE,
        cuMemcpyHtoD(across, given.data(), 4 * granularity));  // beyond the reserved range
  const unsigned count = static_cast<unsigned>(2 * granularity / 4);
  OK(kernels.launch("fill", (count + 255) / 256, 256, nullptr, range, 3u, count));
  const auto twin = download<uint32_t>(range + 2 * granularity, granularity / 4);
  for (uint32_t i = 0; i < twin.size(); ++i) EXPECT(twin[i] == 3 + i);
  OK(cuMemUnmap(range, granularity));
  // The handle is released, but the memory is still mapped at the second address.
  OK(cuMemRelease(memory[0]));
  EXPECT(download<uint32_t>(range + 2 * granularity, 2)[1] == 4);
  OK(cuMemUnmap(range + granularity, 2 * granularity));
  OK(cuMemRelease(memory[1]));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(range, granularity));
  OK(cuMemAddressFree(range, 4 * granularity));
  size_t before = 0, total = 0;
  OK(cuMemGetInfo(&before, &total));
  OK(cuMemCreate(&memory[0], 8 * granularity, &prop, 0));
  size_t after = 0;
  OK(cuMemGetInfo(&after, &total));
  EXPECT(before - after == 8 * granularity);
  OK(cuMemRelease(memory[0]));
  OK(cuMemGetInfo(&after, &total));
  EXPECT(before == after);
}

SCENARIO(stream_ordered_memory) {
  Device device;
  Kernels kernels;
  CUstream stream = nullptr;
  CUmemoryPool pool = nullptr, current = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuDeviceGetDefaultMemPool(&pool, device.device));
  OK(cuDeviceGetMemPool(&current, device.device));
  EXPECT(pool == current);
  cuuint64_t threshold = 1 << 20;
  OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  threshold = 0;
  OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  EXPECT(threshold == 1 << 20);
  for (unsigned round = 0; round < 50; ++round) {
    CUdeviceptr values = 0;
    OK(cuMemAllocAsync(&values, 1 << 20, stream));
    OK(kernels.launch("fill", 1024, 256, stream, values, round, 1u << 18));
    uint32_t last = 0;
    OK(cuMemcpyDtoHAsync(&last, values + (1 << 20) - 4, 4, stream));
    OK(cuMemFreeAsync(values, stream));
    OK(cuStreamSynchronize(stream));
    EXPECT(last == round + (1u << 18) - 1);
  }
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  props.location.id = device.device;
  CUmemoryPool own = nullptr;
  OK(cuMemPoolCreate(&own, &props));
  CUdeviceptr values = 0;
  OK(cuMemAllocFromPoolAsync(&values, 4096, own, stream));
  OK(cuMemsetD32Async(values, 9, 1024, stream));
  OK(cuStreamSynchronize(stream));
  EXPECT(download<uint32_t>(values, 1024)[1023] == 9);
  OK(cuMemFreeAsync(values, stream));
  OK(cuStreamSynchronize(stream));
  OK(cuMemPoolTrimTo(own, 0));
  OK(cuDeviceSetMemPool(device.device, own));
  OK(cuDeviceGetMemPool(&current, device.device));
  EXPECT(current == own);
  OK(cuDeviceSetMemPool(device.device, pool));
  OK(cuMemPoolDestroy(own));
  // Trimming releases the memory that the pool kept below its threshold.
  OK(cuMemPoolTrimTo(pool, 0));
  OK(cuStreamDestroy(stream));
}
