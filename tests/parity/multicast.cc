// Features of some devices only: multicast objects and the decompression engine. softgpu has neither, and the
// pool returns the same errors.
#include <cstdint>

#include "tests/parity/show.h"

namespace parity {
#if CUDA_VERSION >= 12080
namespace {

void objects() {
  size_t granularity = 0, size = 2u << 20;
  CUmulticastObjectProp properties{};
  properties.numDevices = 1;
  properties.size = size;
  if (SHOW(cuMulticastGetGranularity(&granularity, &properties, CU_MULTICAST_GRANULARITY_RECOMMENDED)) ==
      CUDA_SUCCESS) {
    size = (size + granularity - 1) / granularity * granularity;
    properties.size = size;
  }
  CUmemGenericAllocationHandle object = 0, memory = 0;
  CUmemAllocationProp of_memory{};
  of_memory.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  of_memory.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  SHOW(cuMemCreate(&memory, size, &of_memory, 0));
  SHOW(cuMulticastCreate(&object, &properties));
  SHOW(cuMulticastAddDevice(object, 0));
  SHOW(cuMulticastBindMem(object, 0, memory, 0, size, 0));
  SHOW(cuMulticastUnbind(object, 0, 0, size));
  SHOW(cuMulticastBindAddr(object, 0, kWildAddress, size, 0));
  SHOW(cuMulticastCreate(nullptr, &properties));
  SHOW(cuMulticastCreate(&object, nullptr));
  SHOW(cuMulticastGetGranularity(nullptr, &properties, CU_MULTICAST_GRANULARITY_MINIMUM));
  if (object != 0) SHOW(cuMemRelease(object));
  SHOW(cuMemRelease(memory));
}

void decompression() {
  CUdeviceptr memory = 0;
  size_t failed = 5;
  cuMemAlloc(&memory, 4096);
  CUmemDecompressParams operation{};
  operation.src = reinterpret_cast<const void*>(memory), operation.srcNumBytes = 64;
  operation.dst = reinterpret_cast<void*>(memory + 1024), operation.dstNumBytes = 64;
  operation.dstActBytes = reinterpret_cast<cuuint32_t*>(memory + 2048);
  operation.algo = CU_MEM_DECOMPRESS_ALGORITHM_LZ4;
  SHOW(cuMemBatchDecompressAsync(&operation, 0, 0, &failed, nullptr));
  SHOW(cuMemBatchDecompressAsync(nullptr, 1, 0, &failed, nullptr));
  SHOW(cuMemBatchDecompressAsync(&operation, 1, 7, &failed, nullptr));
  cuMemFree(memory);
}

}  // namespace

void multicast() {
  objects();
  decompression();
}
#else
void multicast() {}
#endif

}  // namespace parity
