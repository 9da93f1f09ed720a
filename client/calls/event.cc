// Events: rows, but for what a capture has to do with them.
#include "client/capture.h"
#include "protocol/cuda/exports.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

CUresult record(CUevent event, CUstream stream, unsigned flags) {
  return guarded([&]() -> CUresult {
    if (capture::any() || capture::any_event()) [[unlikely]] {
      Session* session = nullptr;
      Context* context = nullptr;
      if (const CUresult result = ready_with_stream(&session, &context, stream); result != CUDA_SUCCESS) return result;
      const Object* const known = handles().find(Kind::event, cuda::handle_bits(event));
      if (!known) return CUDA_ERROR_INVALID_HANDLE;
      if (const auto captured = capture::record(*context, stream, *known, flags)) return *captured;
    }
    return flags == 0 ? rows::cuEventRecord::forward(event, stream) : rows::cuEventRecordWithFlags::forward(event, stream, flags);
  });
}

}  // namespace

CUDA_EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) { return record(event, stream, 0); }
CUDA_EXPORT CUresult cuEventRecord_ptsz(CUevent event, CUstream stream) { return record(event, or_per_thread(stream), 0); }
CUDA_EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) { return record(event, stream, flags); }
CUDA_EXPORT CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned int flags) {
  return record(event, or_per_thread(stream), flags);
}

CUDA_EXPORT CUresult cuEventDestroy_v2(CUevent event) {
  capture::forget_event(event);
  return rows::cuEventDestroy_v2::forward(event);
}

CUDA_EXPORT CUresult cuEventQuery(CUevent event) {
  const CUresult refused = capture::refuse_event(event);
  return refused == CUDA_SUCCESS ? rows::cuEventQuery::forward(event) : refused;
}

CUDA_EXPORT CUresult cuEventSynchronize(CUevent event) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = ready_with_context(&session, &context); result != CUDA_SUCCESS) return result;
    const Object* known = handles().find(Kind::event, cuda::handle_bits(event));
    if (!known) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult refused = capture::refuse_event(event); refused != CUDA_SUCCESS) return refused;
    Place place{session, context};
    go_to(*known, place);
    if (!place.context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    wire::Buffer reply;
    return place.session->call(wire::Command::synchronize_event, place.context,
                               wire::SynchronizeEvent{cuda::handle_bits(event)}, reply);
  });
}
