// Converts between the generations of descriptors for copies of boxes (CUDA_MEMCPY2D, 3D, 3D_PEER, each with
// a first version), whose fields have the same names. Pure functions, any thread.
#pragma once
#include "protocol/driver/cuda_header.h"

namespace gpupool::cuda {

// Copies the fields that all generations have.
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

// Copies the fields that all three-dimensional generations have.
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

// Returns the copy as a box of one slice.
inline CUDA_MEMCPY3D boxed(const CUDA_MEMCPY2D& copy) {
  CUDA_MEMCPY3D box{};
  set_rectangle(box, copy);
  box.Depth = 1;
  return box;
}

// Performs cuMemcpy3DPeer once its contexts are known to exist (null for a side that is not device memory);
// synchronously if `wait`. Defined by the client library and by softgpu.
CUresult copy_box_between(const CUDA_MEMCPY3D& copy, CUcontext to, CUcontext from, CUstream stream,
                          bool wait);

}  // namespace gpupool::cuda
