// The launch calls of CUDA 2, which set shape and parameters on the function first.
#include <cstring>

#include "client/session/module.h"
#include "protocol/driver/exports.h"
#include "protocol/wire/commands.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

template <class Body>
CUresult change(CUfunction given, Body&& body) noexcept {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
    Function* const function = find_function(given);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    const std::lock_guard lock(function->mutex);
    return body(function->old_launch);
  });
}

CUresult set_parameter(CUfunction function, int offset, const void* value, size_t bytes) {
  return change(function, [&](Function::OldLaunch& old) -> CUresult {
    if (offset < 0 || !value || static_cast<size_t>(offset) + bytes > wire::kMaxParameterBytes)
      return CUDA_ERROR_INVALID_VALUE;
    if (old.parameters.size() < offset + bytes) old.parameters.resize(offset + bytes);
    std::memcpy(old.parameters.data() + offset, value, bytes);
    return CUDA_SUCCESS;
  });
}

CUresult launch(CUfunction function, int width, int height, CUstream stream) {
  return guarded([&]() -> CUresult {
    Function::OldLaunch old;
    const CUresult result = change(function, [&](const Function::OldLaunch& set) {
      old = set;
      return CUDA_SUCCESS;
    });
    if (result != CUDA_SUCCESS) return result;
    if (width <= 0 || height <= 0) return CUDA_ERROR_INVALID_VALUE;
    // Parameters that were not set are zeros.
    const Function* const known = find_function(function);
    if (known && old.parameters.size() < known->parameter_bytes)
      old.parameters.resize(known->parameter_bytes);
    size_t bytes = old.parameters.size();
    if (bytes == 0) old.parameters.emplace_back();  // the address must not be null
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, old.parameters.data(), CU_LAUNCH_PARAM_BUFFER_SIZE,
                     &bytes, CU_LAUNCH_PARAM_END};
    return cuLaunchKernel(function, static_cast<unsigned>(width), static_cast<unsigned>(height), 1,
                          old.block[0], old.block[1], old.block[2], old.shared_bytes, stream, nullptr, extra);
  });
}

}  // namespace

CUDA_EXPORT CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z) {
  return change(function, [&](Function::OldLaunch& old) -> CUresult {
    if (x <= 0 || y <= 0 || z <= 0) return CUDA_ERROR_INVALID_VALUE;
    old.block[0] = static_cast<uint32_t>(x);
    old.block[1] = static_cast<uint32_t>(y);
    old.block[2] = static_cast<uint32_t>(z);
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuFuncSetSharedSize(CUfunction function, unsigned int bytes) {
  return change(function, [&](Function::OldLaunch& old) {
    old.shared_bytes = bytes;
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuParamSetSize(CUfunction function, unsigned int bytes) {
  return change(function, [&](Function::OldLaunch& old) -> CUresult {
    if (bytes > wire::kMaxParameterBytes) return CUDA_ERROR_INVALID_VALUE;
    old.parameters.resize(bytes);
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuParamSeti(CUfunction function, int offset, unsigned int value) {
  return set_parameter(function, offset, &value, sizeof value);
}
CUDA_EXPORT CUresult cuParamSetf(CUfunction function, int offset, float value) {
  return set_parameter(function, offset, &value, sizeof value);
}
CUDA_EXPORT CUresult cuParamSetv(CUfunction function, int offset, void* value, unsigned int bytes) {
  return set_parameter(function, offset, value, bytes);
}
CUDA_EXPORT CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream) {
  return launch(function, width, height, stream);
}
