// Pointer attributes.
#include "server/softgpu/runtime/api/call.h"
#include "server/softgpu/runtime/physical_memory.h"

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

template <class T>
CUresult put(void* data, T value) {
  *static_cast<T*>(data) = value;
  return CUDA_SUCCESS;
}

bool legacy_capable(const MemoryRange& range) {
  return range.kind == MemoryKind::device || range.is_module();
}

CUresult attribute_of(const MemoryRange& range, CUpointer_attribute attribute, uint64_t address, void* data) {
  const bool host = range.is_host();
  switch (static_cast<int>(attribute)) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: return put(data, make_handle<CUcontext>(range.context));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put<unsigned>(data, host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return put<CUdeviceptr>(data, address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!host && !range.is_managed()) return CUDA_ERROR_INVALID_VALUE;
      return put(data, reinterpret_cast<void*>(address));
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS: return CUDA_ERROR_NOT_SUPPORTED;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: return put<unsigned>(data, range.sync_memops ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: return put<unsigned long long>(data, range.id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: return put<unsigned>(data, range.is_managed() ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return put<int>(data, range.device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return put<unsigned>(data, legacy_capable(range) ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return put(data, reinterpret_cast<void*>(range.address));
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return put<size_t>(data, range.size);
    case CU_POINTER_ATTRIBUTE_MAPPED: return put<unsigned>(data, range.readable ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return put<uint64_t>(data,
                           range.kind == MemoryKind::mapped
                               ? static_cast<PhysicalMemory&>(*range.owner).properties.requestedHandleTypes
                               : 0);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: return put<unsigned>(data, 0);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return put<unsigned>(data, range.writable   ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE
                                 : range.readable ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ
                                                  : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return put(data, range.kind == MemoryKind::pool
                           ? make_handle<CUmemoryPool>(static_cast<MemoryPool&>(*range.owner).handle)
                           : nullptr);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: return put<size_t>(data, range.size);
    case 19:  // MAPPING_BASE_ADDR, CUDA 12
      return put(data, reinterpret_cast<void*>(range.address));
    case 20:  // MEMORY_BLOCK_ID
      return put<unsigned long long>(data, range.kind == MemoryKind::mapped
                                               ? static_cast<PhysicalMemory&>(*range.owner).handle
                                               : range.id);
    case 21:  // IS_HW_DECOMPRESS_CAPABLE
      return put<unsigned>(data, 0);
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

// cuPointerGetAttributes returns zeros for unknown pointers, and -2 as their device.
CUresult attribute_of_unknown(CUpointer_attribute attribute, void* data) {
  switch (static_cast<int>(attribute)) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case 19: return put<void*>(data, nullptr);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case 20: return put<uint64_t>(data, 0);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return put<int>(data, -2);
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS: return CUDA_ERROR_NOT_SUPPORTED;
    default:
      if (attribute <= 0 || attribute > 21) return CUDA_ERROR_INVALID_VALUE;
      return put<unsigned>(data, 0);
  }
}

}  // namespace

CUDA_EXPORT CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  return call([&] {
    if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto range = runtime().memory().find(address);
    return range ? attribute_of(*range, attribute, address, data) : CUDA_ERROR_INVALID_VALUE;
  });
}

CUDA_EXPORT CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** data,
                                            CUdeviceptr address) {
  return call([&] {
    if (count == 0 || attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto range = runtime().memory().find(address);
    for (unsigned i = 0; i < count; ++i) {
      if (data[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
      CUresult result = CUDA_ERROR_INVALID_VALUE;
      if (range) result = attribute_of(*range, attributes[i], address, data[i]);
      // Attributes that this kind of memory does not have are zero.
      if (result != CUDA_SUCCESS) result = attribute_of_unknown(attributes[i], data[i]);
      if (result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute,
                                           CUdeviceptr address) {
  return call([&] {
    // The only attribute that can be set is stored and has no effect.
    if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
    const auto range = runtime().memory().find(address);
    if (!range) return CUDA_ERROR_INVALID_VALUE;
    const bool on = *static_cast<const unsigned*>(value) != 0;
    runtime().memory().change(range->address, range->size,
                              [&](MemoryRange& found) { found.sync_memops = on; });
    return CUDA_SUCCESS;
  });
}
