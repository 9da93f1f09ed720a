// Wrapper of calls that free or destroy an object, which need no current context.
#pragma once
#include "server/softgpu/runtime/api/call.h"

namespace gpupool::softgpu::api {

// Like call_in_context(), but if no context is current, in the one that `owner` returns.
template <class Owner, class Body>
CUresult call_in_context_or(const Owner& owner, const Body& body) noexcept {
  return call([&] {
    Ref<Context> context = current_context();
    if (!context) context = owner();
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (const CUresult result = context->check(); result != CUDA_SUCCESS) {
      Context::write_device_output();
      return result;
    }
    return body(*context);
  });
}

}  // namespace gpupool::softgpu::api
