// Exported functions that put functions of the program into streams (client/streams/host_function.h).
#include "client/streams/host_function.h"

#include "client/graphs/capture.h"
#include "protocol/driver/exports.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

CUresult launch(const ProgramFunction& function, CUstream stream) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (!function.function && !function.callback) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = require_stream_for_work(&session, &context, stream); result != CUDA_SUCCESS)
      return result;
    const auto captured = capture::add(*context, stream, CU_GRAPH_NODE_TYPE_HOST, [&](NodeWork& work) {
      if (!function.function) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
      work = HostWork{{function.function, function.user}};
      return CUDA_SUCCESS;
    });
    if (captured) [[unlikely]]
      return *captured;
    return run_in_stream(*session, *context, stream, function);
  });
}

CUresult add_callback(CUstream stream, CUstreamCallback callback, void* user, unsigned flags, CUstream seen) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return launch({.callback = callback, .stream = seen, .user = user}, stream);
}

}  // namespace

CUDA_EXPORT CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* user) {
  return launch({.function = function, .user = user}, stream);
}
CUDA_EXPORT CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void* user) {
  return launch({.function = function, .user = user}, or_per_thread(stream));
}

CUDA_EXPORT CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void* user,
                                         unsigned int flags) {
  return add_callback(stream, callback, user, flags, stream);
}
CUDA_EXPORT CUresult cuStreamAddCallback_ptsz(CUstream stream, CUstreamCallback callback, void* user,
                                              unsigned int flags) {
  return add_callback(or_per_thread(stream), callback, user, flags, stream);
}
