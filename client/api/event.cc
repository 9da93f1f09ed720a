// Events: table rows, except for stream capture and the order of streams.
#include "client/api/destroy.h"
#include "client/graphs/capture.h"
#include "client/memory/compared_copies.h"
#include "client/memory/pool_memory.h"
#include "client/streams/interprocess_events.h"
#include "client/streams/stream_marks.h"
#include "protocol/driver/exports.h"
#include "protocol/wire/commands.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

// Other processes may wait for a shared event as soon as the record call has returned, so waits until the
// device has the record.
CUresult recorded(CUresult result, CUevent event) {
  if (result != CUDA_SUCCESS || !interprocess_events::contains(event)) [[likely]]
    return result;
  CallTarget target;
  if (const CUresult early = require_context(&target.session, &target.context); early != CUDA_SUCCESS)
    return early;
  const Object* const known = handles().find(Kind::event, cuda::handle_bits(event));
  if (!known) return CUDA_ERROR_INVALID_HANDLE;
  redirect(*known, target);
  if (!target.context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  wire::Buffer reply;
  return target.session->call(wire::Command::await_record, target.context,
                              wire::AwaitRecord{cuda::handle_bits(event)}, reply);
}

CUresult forward_record(CUevent event, CUstream stream, unsigned flags) {
  return flags == 0 ? rows::cuEventRecord::forward(event, stream)
                    : rows::cuEventRecordWithFlags::forward(event, stream, flags);
}

// Records while memory pools follow events. The server may reject flags, and a stream of another context than
// the event's.
CUresult record_in_order(CUevent event, CUstream stream, unsigned flags) {
  Session* session = nullptr;
  Context* context = nullptr;
  CUstream resolved = stream;
  if (const CUresult result = require_stream_for_work(&session, &context, resolved); result != CUDA_SUCCESS)
    return result;
  const Object* const known = handles().find(Kind::event, cuda::handle_bits(event));
  if (!known) return CUDA_ERROR_INVALID_HANDLE;
  const Context& own = stream_context(*context, resolved);
  StreamOrder::Points points;
  if (flags == 0 && known->context == own.owner().handle)
    points = stream_order().reach(order_key(own, resolved));
  const uint64_t handle = known->handle;
  stream_order().begin_record(handle);
  const CUresult result = forward_record(event, stream, flags);
  stream_order().end_record(handle, result == CUDA_SUCCESS ? points : StreamOrder::Points());
  return result;
}

CUresult record(CUevent event, CUstream stream, unsigned flags, const char* caller = __builtin_FUNCTION()) {
  return guarded(caller, [&]() -> CUresult {
    if (capture::any() || capture::any_event()) [[unlikely]] {
      Session* session = nullptr;
      Context* context = nullptr;
      if (const CUresult result = require_stream(&session, &context, stream); result != CUDA_SUCCESS)
        return result;
      const Object* const known = handles().find(Kind::event, cuda::handle_bits(event));
      if (!known) return CUDA_ERROR_INVALID_HANDLE;
      if (const auto captured = capture::record(*context, stream, *known, flags)) {
        if (flags != 0)
          stream_order().invalidate_event(known->handle);  // the graph records the event at each launch
        return *captured;
      }
    }
    return recorded(stream_order().active() ? record_in_order(event, stream, flags)
                                            : forward_record(event, stream, flags),
                    event);
  });
}

}  // namespace

CUDA_EXPORT CUresult cuEventCreate(CUevent* event, unsigned int flags) {
  return guarded([&]() -> CUresult {
    const bool shared = (flags & CU_EVENT_INTERPROCESS) != 0;
    if (shared) {
      Session* session = nullptr;
      Context* context = nullptr;
      if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
      if ((flags & CU_EVENT_DISABLE_TIMING) == 0) return CUDA_ERROR_INVALID_VALUE;
    }
    const CUresult result = rows::cuEventCreate::forward(event, flags);
    if (result == CUDA_SUCCESS && shared) interprocess_events::add(*event);
    return result;
  });
}

CUDA_EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
  return record(event, stream, 0);
}
CUDA_EXPORT CUresult cuEventRecord_ptsz(CUevent event, CUstream stream) {
  return record(event, or_per_thread(stream), 0);
}
CUDA_EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
  return record(event, stream, flags);
}
CUDA_EXPORT CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned int flags) {
  return record(event, or_per_thread(stream), flags);
}

CUDA_EXPORT CUresult cuEventDestroy_v2(CUevent event) {
  capture::forget_event(event);
  interprocess_events::remove(event);
  stream_order().forget_event(cuda::handle_bits(event));
  return destroy<rows::cuEventDestroy_v2>(Kind::event, event);
}

CUDA_EXPORT CUresult cuEventQuery(CUevent event) {
  if (const CUresult refused = capture::refuse_event(event); refused != CUDA_SUCCESS) return refused;
  const uint64_t handle = cuda::handle_bits(event);
  const auto state = stream_order().of_event(handle);
  const CUresult result = rows::cuEventQuery::forward(event);
  if (result == CUDA_SUCCESS && !state.points.empty() && !stream_order().is_recorded_anew(handle, state))
    stream_order().passed(state.points);
  return result == CUDA_SUCCESS && compared_copies().any()
             ? guarded([] { return compared_copies().after_other_wait(); })
             : result;
}

CUDA_EXPORT CUresult cuEventSynchronize(CUevent event) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
    const Object* known = handles().find(Kind::event, cuda::handle_bits(event));
    if (!known) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult refused = capture::refuse_event(event); refused != CUDA_SUCCESS) return refused;
    CallTarget target{session, context};
    redirect(*known, target);
    if (!target.context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    wire::Buffer reply;
    const auto state = stream_order().of_event(known->handle);
    const CUresult result = target.session->call(wire::Command::synchronize_event, target.context,
                                                 wire::SynchronizeEvent{cuda::handle_bits(event)}, reply);
    const bool knows =
        !state.points.empty() && !stream_order().is_recorded_anew(cuda::handle_bits(event), state);
    if (result == CUDA_SUCCESS) after_wait(knows ? state.points : StreamOrder::Points());
    return result == CUDA_SUCCESS && compared_copies().any() ? compared_copies().after_other_wait() : result;
  });
}

#if CUDA_VERSION >= 12050
namespace {

// A null context means the current one.
CUresult find(CUcontext given, CUevent event, Context** context, const Object** known) {
  Session* session = nullptr;
  if (given) {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    *context = handles().find_as<Context>(Kind::context, cuda::handle_bits(given));
  } else if (const CUresult result = require_context(&session, context); result != CUDA_SUCCESS) {
    return result;
  }
  if (!*context) return CUDA_ERROR_INVALID_CONTEXT;
  *known = handles().find(Kind::event, cuda::handle_bits(event));
  return *known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace

CUDA_EXPORT CUresult cuCtxRecordEvent(CUcontext given, CUevent event) {
  return guarded([&]() -> CUresult {
    Context* context = nullptr;
    const Object* known = nullptr;
    if (const CUresult result = find(given, event, &context, &known); result != CUDA_SUCCESS) return result;
    if (known->context != context->owner().handle) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult refused = capture::refuse_context(*context); refused != CUDA_SUCCESS) return refused;
    capture::forget_event(event);
    stream_order().invalidate_event(known->handle);
    return recorded(rows::cuCtxRecordEvent::at({context->session, context},
                                               {cuda::handle_from_bits<CUcontext>(context->handle), event}),
                    event);
  });
}

CUDA_EXPORT CUresult cuCtxWaitEvent(CUcontext given, CUevent event) {
  return guarded([&]() -> CUresult {
    Context* context = nullptr;
    const Object* known = nullptr;
    if (const CUresult result = find(given, event, &context, &known); result != CUDA_SUCCESS) return result;
    if (const CUresult refused = capture::refuse_context(*context); refused != CUDA_SUCCESS) return refused;
    if (capture::refuse_event(event) != CUDA_SUCCESS) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    // An event of another server: no present or future stream of the context may continue, so the caller
    // waits.
    if (known->session != context->session) return cuEventSynchronize(event);
    return rows::cuCtxWaitEvent::at({context->session, context},
                                    {cuda::handle_from_bits<CUcontext>(context->handle), event});
  });
}
#endif
