// Copies of boxes between contexts: cuMemcpy3DPeer.
#include "protocol/calls/box.h"
#include "protocol/driver/exports.h"

namespace {

// A side's context must exist only if the side is device memory.
CUresult check(CUmemorytype type, CUcontext context) {
  if (type == CU_MEMORYTYPE_ARRAY || type == CU_MEMORYTYPE_HOST) return CUDA_SUCCESS;
  unsigned version = 0;
  return context ? cuCtxGetApiVersion(context, &version) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult copy_peer(const CUDA_MEMCPY3D_PEER* copy, CUstream stream, bool wait) {
  CUcontext current = nullptr;
  if (const CUresult result = cuCtxGetCurrent(&current); result != CUDA_SUCCESS) return result;
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  if (!copy) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = check(copy->srcMemoryType, copy->srcContext); result != CUDA_SUCCESS)
    return result;
  if (const CUresult result = check(copy->dstMemoryType, copy->dstContext); result != CUDA_SUCCESS)
    return result;
  CUDA_MEMCPY3D plain{};
  gpupool::cuda::set_box(plain, *copy);
  return gpupool::cuda::copy_box_between(plain, copy->dstContext, copy->srcContext, stream, wait);
}

}  // namespace

CUDA_EXPORT CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* copy) {
  return copy_peer(copy, nullptr, true);
}
CUDA_EXPORT CUresult cuMemcpy3DPeer_ptds(const CUDA_MEMCPY3D_PEER* copy) {
  return copy_peer(copy, CU_STREAM_PER_THREAD, true);
}
CUDA_EXPORT CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* copy, CUstream stream) {
  return copy_peer(copy, stream, false);
}
CUDA_EXPORT CUresult cuMemcpy3DPeerAsync_ptsz(const CUDA_MEMCPY3D_PEER* copy, CUstream stream) {
  return copy_peer(copy, stream ? stream : CU_STREAM_PER_THREAD, false);
}
