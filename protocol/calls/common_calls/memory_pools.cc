// Memory pools by location and kind of memory. For a device's own memory they are the pools of
// cuDevice...MemPool; others are not supported.
#include "protocol/driver/exports.h"

#if CUDA_VERSION >= 13000
namespace {

// CUDA_SUCCESS for a device's own memory.
CUresult check(const CUmemLocation* place, CUmemAllocationType type) {
  int count = 0;
  if (const CUresult result = cuDeviceGetCount(&count); result != CUDA_SUCCESS) return result;
  if (!place) return CUDA_ERROR_INVALID_VALUE;
  const bool known_place = place->type == CU_MEM_LOCATION_TYPE_DEVICE ||
                           place->type == CU_MEM_LOCATION_TYPE_HOST ||
                           place->type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
  if (type == CU_MEM_ALLOCATION_TYPE_MANAGED) {
    return known_place || place->type == CU_MEM_LOCATION_TYPE_NONE ? CUDA_ERROR_NOT_SUPPORTED
                                                                   : CUDA_ERROR_INVALID_VALUE;
  }
  if (type != CU_MEM_ALLOCATION_TYPE_PINNED || !known_place) return CUDA_ERROR_INVALID_VALUE;
  if (place->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  return place->id >= 0 && place->id < count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

}  // namespace

CUDA_EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool, CUmemLocation* place,
                                            CUmemAllocationType type) {
  const CUresult result = check(place, type);
  return result == CUDA_SUCCESS ? cuDeviceGetDefaultMemPool(pool, place->id) : result;
}
CUDA_EXPORT CUresult cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation* place, CUmemAllocationType type) {
  const CUresult result = check(place, type);
  return result == CUDA_SUCCESS ? cuDeviceGetMemPool(pool, place->id) : result;
}
CUDA_EXPORT CUresult cuMemSetMemPool(CUmemLocation* place, CUmemAllocationType type, CUmemoryPool pool) {
  const CUresult result = check(place, type);
  if (result != CUDA_SUCCESS) return result;
  const CUresult set = cuDeviceSetMemPool(place->id, pool);
  // The pool belongs to another location.
  return set == CUDA_ERROR_INVALID_DEVICE ? CUDA_ERROR_INVALID_VALUE : set;
}
#endif
