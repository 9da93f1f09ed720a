// Names and descriptions of errors, and the calls for profilers.
#include "protocol/calls/errors.h"
#include "server/softgpu/runtime/api/call.h"

using namespace gpupool;
using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

CUresult answer(const char* text, const char** out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = text;
  return text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

}  // namespace

CUDA_EXPORT CUresult cuGetErrorName(CUresult error, const char** name) {
  return answer(cuda::error_name(static_cast<int>(error)), name);
}
CUDA_EXPORT CUresult cuGetErrorString(CUresult error, const char** text) {
  return answer(cuda::error_description(static_cast<int>(error)), text);
}

// There is no profiler to control.
CUDA_EXPORT CUresult cuProfilerStart() {
  return call_in_context([](Context&) { return CUDA_SUCCESS; });
}
CUDA_EXPORT CUresult cuProfilerStop() {
  return call_in_context([](Context&) { return CUDA_SUCCESS; });
}
