// A device library for tests: softgpu with features that it lacks. Adds multicast objects (it only records
// bindings) and a decompression engine that supports only stored blocks, that is, copies. Prints the data of
// edges that are added to graphs, which has no effect on softgpu.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "protocol/driver/cuda_header.h"
#include "protocol/driver/exports.h"

#if CUDA_VERSION >= 12080
namespace {

constexpr size_t kGranularity = 2u << 20;
constexpr CUmemGenericAllocationHandle kFirst = 0x4d43000000000000ull;  // differs from softgpu's handles

// Returns softgpu's function, also if this library overrides it.
template <class Function>
Function* softgpu(const char* name) {
  static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

struct Bound {
  size_t offset, size;
};
struct Multicast {
  size_t size;
  bool has_device;
  std::vector<Bound> bound;
};
std::mutex mutex;
std::map<CUmemGenericAllocationHandle, Multicast> objects;
CUmemGenericAllocationHandle next = kFirst;

template <class Body>
CUresult on_object(CUmemGenericAllocationHandle handle, const Body& body) {
  const std::lock_guard lock(mutex);
  const auto known = objects.find(handle);
  return known == objects.end() ? CUDA_ERROR_INVALID_VALUE : body(known->second);
}

CUresult bind(CUmemGenericAllocationHandle handle, size_t offset, size_t size) {
  return on_object(handle, [&](Multicast& object) {
    if (!object.has_device) return CUDA_ERROR_INVALID_DEVICE;
    if (size == 0 || offset % kGranularity != 0 || offset + size > object.size)
      return CUDA_ERROR_INVALID_VALUE;
    object.bound.push_back({offset, size});
    return CUDA_SUCCESS;
  });
}

}  // namespace

CUDA_EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  const CUresult result =
      softgpu<decltype(cuDeviceGetAttribute)>("cuDeviceGetAttribute")(value, attribute, device);
  if (result != CUDA_SUCCESS) return result;
  if (attribute == CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED) *value = 1;
  if (attribute == CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK)
    *value = CU_MEM_DECOMPRESS_ALGORITHM_LZ4;
  return result;
}

CUDA_EXPORT CUresult cuMulticastGetGranularity(size_t* granularity, const CUmulticastObjectProp* properties,
                                               CUmulticastGranularity_flags option) {
  if (properties->numDevices != 1) return CUDA_ERROR_INVALID_VALUE;
  *granularity = option == CU_MULTICAST_GRANULARITY_MINIMUM ? kGranularity : 2 * kGranularity;
  return CUDA_SUCCESS;
}
CUDA_EXPORT CUresult cuMulticastCreate(CUmemGenericAllocationHandle* handle,
                                       const CUmulticastObjectProp* properties) {
  if (properties->numDevices != 1 || properties->size % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(mutex);
  objects[*handle = next++] = {properties->size, false, {}};
  return CUDA_SUCCESS;
}
CUDA_EXPORT CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device) {
  return on_object(handle, [&](Multicast& object) {
    if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
    object.has_device = true;
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset,
                                        CUmemGenericAllocationHandle memory, size_t memory_offset,
                                        size_t size, unsigned long long) {
  CUmemAllocationProp properties{};
  const auto of_memory =
      softgpu<decltype(cuMemGetAllocationPropertiesFromHandle)>("cuMemGetAllocationPropertiesFromHandle");
  if (of_memory(&properties, memory) != CUDA_SUCCESS || memory_offset % kGranularity != 0)
    return CUDA_ERROR_INVALID_VALUE;
  return bind(handle, offset, size);
}
CUDA_EXPORT CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset,
                                         CUdeviceptr address, size_t size, unsigned long long) {
  CUdeviceptr base = 0;
  size_t whole = 0;
  const auto range = softgpu<decltype(cuMemGetAddressRange_v2)>("cuMemGetAddressRange_v2");
  if (range(&base, &whole, address) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
  return bind(handle, offset, size);
}
CUDA_EXPORT CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset,
                                       size_t size) {
  return on_object(handle, [&](Multicast& object) {
    const size_t gone = std::erase_if(
        object.bound, [&](const Bound& one) { return one.offset == offset && one.size == size; });
    return device == 0 && gone == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}
CUDA_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  {
    const std::lock_guard lock(mutex);
    if (objects.erase(handle) != 0) return CUDA_SUCCESS;
  }
  return softgpu<decltype(cuMemRelease)>("cuMemRelease")(handle);
}

CUDA_EXPORT CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                               const CUgraphEdgeData* edges, size_t count) {
  const CUresult result = softgpu<decltype(cuGraphAddDependencies_v2)>("cuGraphAddDependencies_v2")(
      graph, from, to, edges, count);
  for (size_t i = 0; edges && result == CUDA_SUCCESS && i < count; ++i)
    std::printf("an edge of port %u and type %u\n", edges[i].from_port, edges[i].type);
  return result;
}

CUDA_EXPORT CUresult cuMemBatchDecompressAsync(CUmemDecompressParams* operations, size_t count, unsigned int,
                                               size_t*, CUstream stream) {
  const auto copy = softgpu<decltype(cuMemcpyDtoDAsync_v2)>("cuMemcpyDtoDAsync_v2");
  const auto fill = softgpu<decltype(cuMemsetD32Async)>("cuMemsetD32Async");
  for (size_t i = 0; i < count; ++i) {
    const CUmemDecompressParams& one = operations[i];
    const auto bytes = static_cast<unsigned>(std::min<size_t>(one.srcNumBytes, one.dstNumBytes));
    const auto at = [](const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); };
    CUresult result = one.algo == CU_MEM_DECOMPRESS_ALGORITHM_LZ4
                          ? copy(at(one.dst), at(one.src), bytes, stream)
                          : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) result = fill(at(one.dstActBytes), bytes, 1, stream);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}
#endif
