// Events.
#include "server/softgpu/runtime/api/call.h"
#include "server/softgpu/runtime/graph.h"

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

constexpr unsigned kExternal = 1;  // CU_EVENT_RECORD_EXTERNAL: captured as a node

// Wraps calls on an event. Its own context must be usable; the current context does not matter.
template <class Body>
CUresult call_on_event(CUevent handle, const Body& body) noexcept {
  return call([&] {
    const Ref<Event> event = find<Event>(handle);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult result = event->context().check(); result != CUDA_SUCCESS) return result;
    return body(*event);
  });
}

CUresult elapsed(float* milliseconds, CUevent start_handle, CUevent end_handle) {
  return call([&] {
    if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Ref<Event> start = find<Event>(start_handle), end = find<Event>(end_handle);
    if (!start || !end || !start->timed() || !end->timed()) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult result = start->context().check(); result != CUDA_SUCCESS) return result;
    const Ref<EventOp> first = start->record(), second = end->record();
    if (!first || !second) return CUDA_ERROR_INVALID_HANDLE;
    if (!first->done() || !second->done()) return CUDA_ERROR_NOT_READY;
    const auto nanoseconds = static_cast<int64_t>(second->completed_at() - first->completed_at());
    *milliseconds = static_cast<float>(static_cast<double>(nanoseconds) * 1e-6);
    return CUDA_SUCCESS;
  });
}

}  // namespace

CUDA_EXPORT CUresult cuEventCreate(CUevent* event, unsigned int flags) {
  return call_in_context([&](Context& context) {
    constexpr unsigned kKnown = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    if (event == nullptr || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
    // Interprocess events cannot have timing.
    if ((flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0)
      return CUDA_ERROR_INVALID_VALUE;
    return context.create_event(flags, event);
  });
}

CUDA_EXPORT CUresult cuEventDestroy_v2(CUevent handle) {
  return call([&] {
    const Ref<Event> event = runtime().handles().remove<Event>(handle_value(handle));
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    event->context().remove_child(handle_value(handle));
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuEventRecordWithFlags(CUevent event_handle, CUstream handle, unsigned int flags) {
  return call_on_stream(handle, [&](Stream& stream) {
    const Ref<Event> event = find<Event>(event_handle);
    if (!event || &event->context().root() != &stream.context().root()) return CUDA_ERROR_INVALID_HANDLE;
    if ((flags & ~kExternal) != 0) return CUDA_ERROR_INVALID_VALUE;
    if (stream.capturing() || event->captured()) {
      std::lock_guard guard(graph_mutex());
      const Ref<Capture> capture = stream.capture();
      if (capture && flags == kExternal) {
        capture->add_node(stream, CU_GRAPH_NODE_TYPE_EVENT_RECORD, handle_value(event_handle));
        return CUDA_SUCCESS;
      }
      event->set_capture(capture, capture ? capture->frontier[&stream] : std::vector<CapturedDependency>());
      if (capture) return CUDA_SUCCESS;
    }
    const Ref<EventOp> op = event->make_record();
    const CUresult result = stream.context().enqueue(stream, op);
    if (result == CUDA_SUCCESS) event->set_record(op);
    return result;
  });
}
CUDA_EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
  return cuEventRecordWithFlags(event, stream, 0);
}

CUDA_EXPORT CUresult cuEventQuery(CUevent handle) {
  return call_on_event(handle, [](Event& event) {
    if (event.captured()) return CUDA_ERROR_CAPTURED_EVENT;
    if (runtime().config().rules.enforces(Rule::event_queries_in_captures)) {
      if (const CUresult refused = refuse_unsafe(); refused != CUDA_SUCCESS) return refused;
    }
    event.context().charge_event_query();
    if (event.pending()) return CUDA_ERROR_NOT_READY;
    return event.context().error();
  });
}

CUDA_EXPORT CUresult cuEventSynchronize(CUevent handle) {
  return call_on_event(handle, [](Event& event) {
    if (event.captured()) return CUDA_ERROR_CAPTURED_EVENT;
    event.context().charge_event_query();
    if (const Ref<Op> record = event.wait_operation())
      event.context().wait_for({&record, 1}, event.blocking_sync());
    event.context().write_device_output();
    runtime().trim_pools(event.context().device());
    return event.context().error();
  });
}

CUDA_EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return elapsed(milliseconds, start, end);
}
#if CUDA_VERSION >= 12080
CUDA_EXPORT CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return elapsed(milliseconds, start, end);
}
#endif
