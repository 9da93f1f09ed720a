// Wrappers (guards.h) for streams and events: check their arguments, and record which work is known to be
// done.
#include "server/worker/handlers/stream_guards.h"

#include <algorithm>

#include "server/worker/session/session.h"
#include "server/worker/session/teardown.h"

namespace gpupool::worker::guards {
namespace {

#define REAL(name) t_session->guarded.name

bool owns(CUdeviceptr address, uint64_t size) {
  return t_session->memory.owns(address, size);
}

bool may_create_stream() {
  return t_session->start.usage.allows(quota::KindId::streams, &quota::Account::streams,
                                       t_session->counters.streams.load(std::memory_order_relaxed));
}

bool is_wait(const CUstreamBatchMemOpParams& operation) {
  return operation.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
         operation.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
}

// Call before the stream may wait for other work or another session.
void pause(CUstream stream) {
  if (StreamState* const state = t_session->contexts.find_stream(stream)) t_session->compute.pause(*state);
}

}  // namespace

CUresult check_operations(const DeviceMemory& memory, std::span<const CUstreamBatchMemOpParams> operations) {
  for (const CUstreamBatchMemOpParams& operation : operations) {
    switch (operation.operation) {
      case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        if (!memory.owns(operation.waitValue.address, 4)) return CUDA_ERROR_INVALID_VALUE;
        break;
      case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        if (!memory.owns(operation.waitValue.address, 8)) return CUDA_ERROR_INVALID_VALUE;
        break;
      case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
      case CU_STREAM_MEM_OP_BARRIER: break;
      default: return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

CUresult wait_value32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  pause(stream);
  return REAL(cuStreamWaitValue32_v2)(stream, address, value, flags);
}
CUresult wait_value64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  pause(stream);
  return REAL(cuStreamWaitValue64_v2)(stream, address, value, flags);
}
CUresult batch(CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations, unsigned flags) {
  if (!operations) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = check_operations(t_session->memory, {operations, count});
  if (result != CUDA_SUCCESS) return result;
  if (std::any_of(operations, operations + count, is_wait)) pause(stream);
  return REAL(cuStreamBatchMemOp_v2)(stream, count, operations, flags);
}

CUresult set_stream_attribute(CUstream stream, CUstreamAttrID attribute, const CUstreamAttrValue* value) {
  // Attributes of streams; other launch attributes contain handles.
  constexpr unsigned kOfStreams = 1u << 1 | 1u << 3 | 1u << 8 | 1u << 9 | 1u << 10;
  const auto id = static_cast<unsigned>(attribute);
  if (id >= 32 || (kOfStreams >> id & 1) == 0) return CUDA_ERROR_INVALID_VALUE;
  if (value && attribute == CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW) {
    const CUaccessPolicyWindow& window = value->accessPolicyWindow;
    if (window.num_bytes != 0 && !owns(reinterpret_cast<CUdeviceptr>(window.base_ptr), window.num_bytes))
      return CUDA_ERROR_INVALID_VALUE;
  }
  return REAL(cuStreamSetAttribute)(stream, attribute, value);
}

CUresult create_stream(CUstream* stream, unsigned flags) {
  return may_create_stream() ? REAL(cuStreamCreate)(stream, flags) : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult create_stream_with_priority(CUstream* stream, unsigned flags, int priority) {
  return may_create_stream() ? REAL(cuStreamCreateWithPriority)(stream, flags, priority)
                             : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult destroy_stream(CUstream stream) {
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  for (auto& [handle, context] : t_session->contexts.all()) {
    if (const auto found = context->streams.find(stream); found != context->streams.end()) {
      before_stream_destroyed(*t_session, *found->second);
      break;
    }
  }
  return REAL(cuStreamDestroy_v2)(stream);
}

CUresult query_stream(CUstream stream) {
  CUresult result = REAL(cuStreamQuery)(stream);
  if (StreamState* const state = t_session->contexts.find_stream(stream)) {
    t_session->contexts.undo_note_use(*state);
    if (result == CUDA_SUCCESS) t_session->contexts.seen_idle(*state);
    if (result == CUDA_ERROR_NOT_READY && t_session->contexts.is_done(*state)) result = CUDA_SUCCESS;
  }
  if (result == CUDA_SUCCESS) t_session->replies.publish();
  return result;
}

CUresult create_event(CUevent* event, unsigned flags) {
  const CUresult result = REAL(cuEventCreate)(event, flags);
  if (result != CUDA_SUCCESS) return result;
  t_session->contexts.stop_tracking_event(*event);
  // An event that processes share may be recorded by others.
  if ((flags & CU_EVENT_INTERPROCESS) == 0) t_session->contexts.track_event(*event);
  return result;
}
CUresult record_event(CUevent event, CUstream stream) {
  t_session->contexts.note_record(event, stream);
  return REAL(cuEventRecord)(event, stream);
}
CUresult record_event_with_flags(CUevent event, CUstream stream, unsigned flags) {
  t_session->contexts.note_record(event, stream);
  return REAL(cuEventRecordWithFlags)(event, stream, flags);
}

CUresult wait_event(CUstream stream, CUevent event, unsigned flags) {
  if (!t_session->contexts.recorded(event)) pause(stream);  // another session may record it
  return REAL(cuStreamWaitEvent)(stream, event, flags);
}

CUresult query_event(CUevent event) {
  const CUresult result = REAL(cuEventQuery)(event);
  if (result != CUDA_SUCCESS) return result;
  if (const auto recorded = t_session->contexts.recorded(event)) recorded->passed();
  t_session->replies.publish();
  return result;
}

CUresult destroy_event(CUevent event) {
  t_session->contexts.stop_tracking_event(event);
  t_session->exported_handles.withdraw(event);
  return t_session->events.postpone_destruction(event) ? CUDA_SUCCESS : REAL(cuEventDestroy_v2)(event);
}

}  // namespace gpupool::worker::guards
