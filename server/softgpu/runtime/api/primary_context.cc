// Primary contexts.
#include "server/softgpu/runtime/api/call.h"
#include "server/softgpu/runtime/green_context.h"

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

template <class Body>
CUresult call_on_primary(CUdevice index, const Body& body) noexcept {
  return call([&] {
    Device* device = runtime().device(index);
    if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    std::lock_guard guard(device->primary_mutex);
    return body(*device, device->primary());
  });
}

}  // namespace

CUDA_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* handle, CUdevice index) {
  return call([&] {
    Device* device = runtime().device(index);
    if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = retain_primary(*device); result != CUDA_SUCCESS) return result;
    *handle = make_handle<CUcontext>(device->primary().handle());
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice index) {
  return call([&] {
    Device* device = runtime().device(index);
    if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    return release_primary(*device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
  });
}

CUDA_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice index) {
  return call_on_primary(index, [](Device&, Context& context) {
    // The retain count stays; the context is inactive until it is retained again.
    if (context.active()) context.tear_down();
    context.set_flags(0);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice index, unsigned int flags) {
  return call_on_primary(index, [&](Device&, Context& context) {
    if (!valid_context_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
    context.set_flags(flags);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice index, unsigned int* flags, int* active) {
  return call_on_primary(index, [&](Device&, Context& context) {
    if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = context.flags();
    *active = context.active() ? 1 : 0;
    return CUDA_SUCCESS;
  });
}
