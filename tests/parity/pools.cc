// Memory pools: maximum size, thresholds, access from devices, and pointer attributes of their memory.
#include <initializer_list>

#include "tests/parity/show.h"

namespace parity {
namespace {

constexpr size_t kUnit = 4u << 20;

CUmemPoolProps on_device(int device) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  return properties;
}

CUmemAccessDesc access_of(int device, CUmemAccess_flags flags) {
  return {{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
}

void show_access(CUmemoryPool pool, int device) {
  CUmemAccess_flags flags{};
  CUmemLocation place{CU_MEM_LOCATION_TYPE_DEVICE, device};
  const CUresult result = cuMemPoolGetAccess(&flags, pool, &place);
  std::printf("access of device %d: %s %d\n", device, name_of(result), flags);
}

// A kernel of the second device writes to memory of the first device's pool.
void use_from_the_other_device(CUmemoryPool pool) {
  CUdevice second = 0;
  CUcontext first_context = nullptr, second_context = nullptr;
  CUmodule module = nullptr;
  CUfunction add = nullptr;
  CUdeviceptr words = 0;
  unsigned value = 7, threads = 4, seen = 0;
  REQUIRE(CUDA_SUCCESS, cuMemAllocFromPoolAsync(&words, 4096, pool, nullptr));
  REQUIRE(CUDA_SUCCESS, cuMemsetD8(words, 0, 4096));
  REQUIRE(CUDA_SUCCESS, cuCtxSynchronize());
  cuCtxGetCurrent(&first_context);
  cuDeviceGet(&second, 1);
  cuDevicePrimaryCtxRetain(&second_context, second);
  cuCtxSetCurrent(second_context);
  cuModuleLoadData(&module, kernels_ptx);
  cuModuleGetFunction(&add, module, "add");
  void* parameters[] = {&words, &value, &threads};
  REQUIRE(CUDA_SUCCESS, launch(add, 1, 4, 0, nullptr, parameters));
  REQUIRE(CUDA_SUCCESS, cuCtxSynchronize());
  cuCtxSetCurrent(first_context);
  REQUIRE(CUDA_SUCCESS, cuMemcpyDtoH(&seen, words, sizeof seen));
  std::printf("written by the other device: %u\n", seen);
  REQUIRE(CUDA_SUCCESS, cuMemFree(words));
}

}  // namespace

void pool_limits() {
  CUmemPoolProps properties = on_device(0);
  properties.maxSize = 2 * kUnit;
  CUmemoryPool pool = nullptr;
  CUdeviceptr first = 0, second = 0, third = 0;
  REQUIRE(CUDA_SUCCESS, cuMemPoolCreate(&pool, &properties));
  REQUIRE(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocFromPoolAsync(&first, 3 * kUnit, pool, nullptr));
  REQUIRE(CUDA_SUCCESS, cuMemAllocFromPoolAsync(&first, kUnit, pool, nullptr));
  REQUIRE(CUDA_SUCCESS, cuMemAllocFromPoolAsync(&second, kUnit, pool, nullptr));
  REQUIRE(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocFromPoolAsync(&third, kUnit, pool, nullptr));
  REQUIRE(CUDA_SUCCESS, cuMemFreeAsync(first, nullptr));
  REQUIRE(CUDA_SUCCESS, cuStreamSynchronize(nullptr));
  REQUIRE(CUDA_SUCCESS, cuMemAllocFromPoolAsync(&third, kUnit, pool, nullptr));
  // Other pools are not limited by this pool's size.
  REQUIRE(CUDA_SUCCESS, cuMemAllocAsync(&first, kUnit, nullptr));
  REQUIRE(CUDA_SUCCESS, cuStreamSynchronize(nullptr));
  for (const CUdeviceptr address : {first, second, third}) REQUIRE(CUDA_SUCCESS, cuMemFree(address));
  REQUIRE(CUDA_SUCCESS, cuMemPoolDestroy(pool));
}

// Memory that remains reserved after synchronization, by release threshold, and the high-water marks.
void pool_thresholds() {
  const CUmemPoolProps properties = on_device(0);
  CUmemoryPool pool = nullptr;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUdeviceptr blocks[3] = {};
  REQUIRE(CUDA_SUCCESS, cuMemPoolCreate(&pool, &properties));
  REQUIRE(CUDA_SUCCESS, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  REQUIRE(CUDA_SUCCESS, cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  const auto tell = [&](const char* when) {
    std::printf("%s:", when);
    for (const auto attribute : {CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
                                 CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_HIGH}) {
      cuuint64_t number = 0;
      REQUIRE(CUDA_SUCCESS, cuMemPoolGetAttribute(pool, attribute, &number));
      std::printf(" %llu", static_cast<unsigned long long>(number));
    }
    std::printf("\n");
  };
  for (cuuint64_t threshold : {cuuint64_t{0}, cuuint64_t{2 * kUnit}, ~cuuint64_t{0}}) {
    REQUIRE(CUDA_SUCCESS, cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    for (CUdeviceptr& block : blocks)
      REQUIRE(CUDA_SUCCESS, cuMemAllocFromPoolAsync(&block, kUnit, pool, stream));
    tell("allocated");
    for (const CUdeviceptr block : blocks) REQUIRE(CUDA_SUCCESS, cuMemFreeAsync(block, stream));
    REQUIRE(CUDA_SUCCESS, cuEventRecord(event, stream));
    // All kinds of synchronization release the memory.
    REQUIRE(CUDA_SUCCESS, threshold == 0           ? cuStreamSynchronize(stream)
                          : threshold == 2 * kUnit ? cuEventSynchronize(event)
                                                   : cuCtxSynchronize());
    tell("freed and waited for");
  }
  REQUIRE(CUDA_SUCCESS, cuMemPoolTrimTo(pool, kUnit));
  tell("trimmed");
  cuuint64_t none = 0;
  REQUIRE(CUDA_SUCCESS, cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &none));
  REQUIRE(CUDA_SUCCESS, cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &none));
  tell("marks reset");
  REQUIRE(CUDA_SUCCESS, cuMemAllocFromPoolAsync(&blocks[0], kUnit, pool, stream));
  tell("allocated again");
  REQUIRE(CUDA_SUCCESS, cuMemPoolDestroy(pool));
  REQUIRE(CUDA_SUCCESS, cuMemsetD8Async(blocks[0], 1, kUnit, stream));  // the allocation outlives the pool
  REQUIRE(CUDA_SUCCESS, cuMemFreeAsync(blocks[0], stream));
  REQUIRE(CUDA_SUCCESS, cuStreamSynchronize(stream));
  REQUIRE(CUDA_SUCCESS, cuEventDestroy(event));
  REQUIRE(CUDA_SUCCESS, cuStreamDestroy(stream));
}

void pool_access() {
  const CUmemPoolProps properties = on_device(0);
  CUmemoryPool pool = nullptr, standard = nullptr;
  REQUIRE(CUDA_SUCCESS, cuMemPoolCreate(&pool, &properties));
  for (const int device : {0, 1, 9}) show_access(pool, device);
  const auto both = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const CUmemAccessDesc peer = access_of(1, both), own_away = access_of(0, CU_MEM_ACCESS_FLAGS_PROT_NONE),
                        none = access_of(9, both), strange = access_of(1, static_cast<CUmemAccess_flags>(77)),
                        away = access_of(1, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuMemPoolSetAccess(pool, nullptr, 1));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuMemPoolSetAccess(nullptr, &peer, 1));
  SHOW(cuMemPoolSetAccess(pool, nullptr, 0));
  SHOW(cuMemPoolSetAccess(pool, &own_away, 1));
  SHOW(cuMemPoolSetAccess(pool, &none, 1));
  SHOW(cuMemPoolSetAccess(pool, &strange, 1));
  REQUIRE(CUDA_SUCCESS, cuMemPoolSetAccess(pool, &peer, 1));
  for (const int device : {0, 1}) show_access(pool, device);
  use_from_the_other_device(pool);
  REQUIRE(CUDA_SUCCESS, cuMemPoolSetAccess(pool, &away, 1));
  show_access(pool, 1);
  cuDeviceGetDefaultMemPool(&standard, 0);
  REQUIRE(CUDA_SUCCESS, cuMemPoolSetAccess(standard, &peer, 1));
  show_access(standard, 1);
}

void pointer_facts() {
  const CUmemPoolProps properties = on_device(0);
  CUmemoryPool pool = nullptr, standard = nullptr, of = nullptr;
  CUdeviceptr plain = 0, pooled = 0, own = 0;
  cuMemPoolCreate(&pool, &properties);
  cuDeviceGetDefaultMemPool(&standard, 0);
  cuMemAlloc(&plain, 4096);
  cuMemAllocAsync(&pooled, 4096, nullptr);
  cuMemAllocFromPoolAsync(&own, 4096, pool, nullptr);
  cuStreamSynchronize(nullptr);
  SHOW_VALUE(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, plain), "%d", of == nullptr);
  SHOW_VALUE(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, pooled + 100), "%d",
             of == standard);
  SHOW_VALUE(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, own), "%d", of == pool);
  if (of != pool) std::_Exit(EXIT_FAILURE);
  unsigned on = 1, seen = 9;
  SHOW_VALUE(cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, plain), "%u", seen);
  REQUIRE(CUDA_SUCCESS, cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, plain));
  SHOW_VALUE(cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, plain + 100), "%u", seen);
  if (seen != 1) std::_Exit(EXIT_FAILURE);
  on = 0;
  REQUIRE(CUDA_SUCCESS, cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, plain));
  SHOW_VALUE(cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, plain), "%u", seen);
  for (const CUdeviceptr address : {plain, pooled, own}) cuMemFree(address);
}

}  // namespace parity
