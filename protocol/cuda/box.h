// Descriptions of copies of boxes exist in several generations (CUDA_MEMCPY2D, 3D, 3D_PEER, each with a first version) whose fields have the
// same names.
#pragma once
#include "protocol/cuda/cuda_header.h"

namespace gpupool::cuda {

// What every generation has.
template <class To, class From>
void set_rectangle(To& to, const From& from) {
  to.srcXInBytes = from.srcXInBytes;
  to.srcY = from.srcY;
  to.srcMemoryType = from.srcMemoryType;
  to.srcHost = from.srcHost;
  to.srcDevice = from.srcDevice;
  to.srcArray = from.srcArray;
  to.srcPitch = from.srcPitch;
  to.dstXInBytes = from.dstXInBytes;
  to.dstY = from.dstY;
  to.dstMemoryType = from.dstMemoryType;
  to.dstHost = from.dstHost;
  to.dstDevice = from.dstDevice;
  to.dstArray = from.dstArray;
  to.dstPitch = from.dstPitch;
  to.WidthInBytes = from.WidthInBytes;
  to.Height = from.Height;
}

// What those of three dimensions have.
template <class To, class From>
void set_box(To& to, const From& from) {
  set_rectangle(to, from);
  to.srcZ = from.srcZ;
  to.srcLOD = from.srcLOD;
  to.srcHeight = from.srcHeight;
  to.dstZ = from.dstZ;
  to.dstLOD = from.dstLOD;
  to.dstHeight = from.dstHeight;
  to.Depth = from.Depth;
}

// A box of one slice.
inline CUDA_MEMCPY3D boxed(const CUDA_MEMCPY2D& copy) {
  CUDA_MEMCPY3D box{};
  set_rectangle(box, copy);
  box.Depth = 1;
  return box;
}

// The copy of cuMemcpy3DPeer once its contexts are known to exist (null where a side is no memory of a device). The client library and softgpu each
// have their own.
CUresult copy_box_between(const CUDA_MEMCPY3D& copy, CUcontext to, CUcontext from, CUstream stream, bool wait);

}  // namespace gpupool::cuda
