// The calls about user objects themselves. Each library implements the references that its graphs hold.
#include "protocol/calls/user_objects.h"

#include <new>

#include "protocol/driver/exports.h"

namespace {

template <class Body>
CUresult when_ready(Body&& body) noexcept {
  int count = 0;
  if (const CUresult result = cuDeviceGetCount(&count); result != CUDA_SUCCESS) return result;
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

}  // namespace

CUDA_EXPORT CUresult cuUserObjectCreate(CUuserObject* object, void* data, CUhostFn destroy,
                                        unsigned int count, unsigned int flags) {
  return when_ready([&] { return gpupool::cuda::create_user_object(object, data, destroy, count, flags); });
}
CUDA_EXPORT CUresult cuUserObjectRetain(CUuserObject object, unsigned int count) {
  return when_ready([&] { return gpupool::cuda::retain_user_object(object, count); });
}
CUDA_EXPORT CUresult cuUserObjectRelease(CUuserObject object, unsigned int count) {
  return when_ready([&] { return gpupool::cuda::release_user_object(object, count); });
}
