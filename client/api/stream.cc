// Streams. Creating one costs no round trip, except for the first with a priority. The client stores flags
// and priority.
#include "client/streams/stream.h"

#include <algorithm>

#include "client/api/destroy.h"
#include "client/graphs/capture.h"
#include "client/memory/compared_copies.h"
#include "client/memory/mirrors.h"
#include "client/memory/pool_memory.h"
#include "client/streams/cross_server.h"
#include "client/streams/stream_marks.h"
#include "protocol/calls/errors.h"
#include "protocol/driver/exports.h"

using namespace gpupool;
using namespace gpupool::client;

namespace gpupool::client {

namespace {
std::atomic<unsigned long long> next_stream_id{3};  // 1 and 2 are the special streams
}

CUresult clamp_priority(Context& context, int* priority) {
  if (*priority == 0) return CUDA_SUCCESS;
  int least = 0, greatest = 0;
  const CUresult result =
      rows::cuCtxGetStreamPriorityRange::at({context.session, &context}, {&least, &greatest});
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_SUPPORTED) return result;
  // An older server lacks the call and has one priority.
  *priority = std::max(greatest, std::min(least, *priority));
  return CUDA_SUCCESS;
}

CUresult create_stream(Context& context, unsigned flags, int priority, CUstream* stream) {
  Session& session = *context.session;
  auto made = std::make_unique<Stream>();
  made->context = context.handle;
  made->flags = flags;
  made->priority = priority;
  made->id = next_stream_id.fetch_add(1);
  const uint64_t handle = session.mint(Kind::stream, std::move(made));
  if (handle == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result =
      session.post(rows::cuStreamCreateWithPriority::kId, &context, [&](wire::Writer& writer) {
        writer.put(handle);
        writer.put(flags);
        writer.put(priority);
      });
  if (result != CUDA_SUCCESS) {
    handles().retire(handle);
    return result;
  }
  if ((flags & CU_STREAM_NON_BLOCKING) == 0) context.blocking_streams.store(true, std::memory_order_relaxed);
  *stream = cuda::handle_from_bits<CUstream>(handle);
  return CUDA_SUCCESS;
}

bool is_blocking(uint64_t stream) {
  const auto* const known = handles().find_as<Stream>(Kind::stream, stream);
  return known && (known->flags & CU_STREAM_NON_BLOCKING) == 0;
}

void note_host_memory_write(Context& context, CUstream stream) {
  if (stream && !is_blocking(cuda::handle_bits(stream))) return;
  Context* its = &context;
  if (stream) (void)context_of_stream(stream, &its);
  if (its) its->writes_host_memory.store(true, std::memory_order_relaxed);
}

CUresult internal_stream(Context& context, CUstream* stream) {
  std::lock_guard lock(context.mutex);
  const uint32_t epoch = context.epoch.load();
  if (context.copy_stream == 0 || context.copy_stream_epoch != epoch) {
    CUstream made = nullptr;
    const CUresult result = create_stream(context, CU_STREAM_NON_BLOCKING, 0, &made);
    if (result != CUDA_SUCCESS) return result;
    const CUresult sent =
        context.session->post(wire::Command::own_stream, &context, wire::OwnStream{cuda::handle_bits(made)});
    if (sent != CUDA_SUCCESS) return sent;
    context.copy_stream = cuda::handle_bits(made);
    context.copy_stream_epoch = epoch;
  }
  *stream = cuda::handle_from_bits<CUstream>(context.copy_stream);
  return CUDA_SUCCESS;
}

CUresult await_room(Session& session, Context& context, CUstream stream) {
  if (!session.receiver().backlog_long()) [[likely]]
    return CUDA_SUCCESS;
  if (capture::any()) {  // captured work is not sent
    const std::lock_guard lock(graph_mutex());
    if (capture::of(stream)) return CUDA_SUCCESS;
  }
  wire::Buffer reply;
  const CUresult result =
      session.call(wire::Command::await_room, &context, wire::AwaitRoom{cuda::handle_bits(stream)}, reply);
  if (result == CUDA_SUCCESS || result == Session::failure() || cuda::is_sticky(result)) return result;
  context.late_error = result;  // an earlier command's error; the call proceeds
  return CUDA_SUCCESS;
}

CUresult require_stream(Session** session, Context** context, CUstream& stream) {
  if (const CUresult result = require_context(session, context); result != CUDA_SUCCESS) return result;
  if (const CUresult result = resolve_stream(**context, stream); result != CUDA_SUCCESS) return result;
  if (!stream) return CUDA_SUCCESS;
  const Object* known = handles().find(Kind::stream, cuda::handle_bits(stream));
  if (!known) return CUDA_ERROR_INVALID_HANDLE;
  if (known->session == *session) return CUDA_SUCCESS;
  CallTarget target{*session, *context};
  redirect(*known, target);
  *session = target.session;
  *context = target.context;
  return *context ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult require_stream_for_work(Session** session, Context** context, CUstream& stream) {
  const CUresult result = require_stream(session, context, stream);
  return result == CUDA_SUCCESS ? await_room(**session, **context, stream) : result;
}

CUresult resolve_stream(Context& context, CUstream& stream) {
  if (stream == CU_STREAM_LEGACY) stream = nullptr;
  if (stream != CU_STREAM_PER_THREAD) return CUDA_SUCCESS;
  uint64_t handle = 0;
  const CUresult result = per_thread_stream(context, &handle);
  stream = cuda::handle_from_bits<CUstream>(handle);
  return result;
}

}  // namespace gpupool::client

CUresult gpupool::client::describe_stream(CUstream stream, StreamFacts* facts) {
  if (const CUresult result = require_context(&facts->session, &facts->context); result != CUDA_SUCCESS)
    return result;
  if (cuda::is_special_stream(cuda::handle_bits(stream))) {
    if (stream == CU_STREAM_PER_THREAD) facts->id = 2;
    return CUDA_SUCCESS;
  }
  const auto* known = handles().find_as<Stream>(Kind::stream, cuda::handle_bits(stream));
  if (!known) return CUDA_ERROR_INVALID_HANDLE;
  facts->flags = known->flags;
  facts->priority = known->priority;
  facts->id = known->id;
  facts->context = handles().find_as<Context>(Kind::context, known->context);
  return facts->context ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult gpupool::client::context_of_stream(CUstream stream, Context** context) {
  StreamFacts facts;
  const CUresult result = describe_stream(stream, &facts);
  *context = facts.context;
  return result;
}

namespace {

CUresult create(CUstream* stream, unsigned flags, int priority) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
    if (!stream || flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = clamp_priority(*context, &priority); result != CUDA_SUCCESS) return result;
    return create_stream(*context, flags, priority, stream);
  });
}

CUresult wait_event(CUstream stream, CUevent event, unsigned flags,
                    const char* caller = __builtin_FUNCTION()) {
  return guarded(caller, [&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_stream_for_work(&session, &context, stream); result != CUDA_SUCCESS)
      return result;
    const Object* known = handles().find(Kind::event, cuda::handle_bits(event));
    if (!known) return CUDA_ERROR_INVALID_HANDLE;
    if (const auto captured = capture::wait(*context, stream, *known, flags)) [[unlikely]]
      return *captured;
    if (known->session == session) {
      const auto state = stream_order().of_event(known->handle);
      const CUresult result = rows::cuStreamWaitEvent::at({session, context}, {stream, event, flags});
      const bool knows = result == CUDA_SUCCESS && flags == 0 && !state.points.empty() &&
                         !stream_order().is_recorded_anew(known->handle, state);
      if (knows) stream_order().waits(order_key(*context, stream), state.points);
      return result;
    }
    if (flags & ~static_cast<unsigned>(CU_EVENT_WAIT_EXTERNAL)) return CUDA_ERROR_INVALID_VALUE;
    return wait_for_event(*context, stream, *known);
  });
}

CUresult synchronize(CUstream stream, const char* caller = __builtin_FUNCTION()) {
  return guarded(caller, [&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_stream(&session, &context, stream); result != CUDA_SUCCESS)
      return result;
    if (const CUresult refused = capture::refuse(*context, stream); refused != CUDA_SUCCESS) return refused;
    const auto points = stream_order().reach(order_key(*context, stream));
    const CUresult result = synchronize_stream(*context, stream);
    if (result == CUDA_SUCCESS) after_wait(points);
    return result;
  });
}

// Forwards a row that takes a stream. If the stream is being captured, invalidates the capture and returns an
// error instead.
template <class Row, class... Arguments>
CUresult unless_captured(CUstream stream, Arguments... arguments) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (capture::any()) [[unlikely]] {
      if (const CUresult result = require_stream(&session, &context, stream); result != CUDA_SUCCESS)
        return result;
      if (const CUresult refused = capture::refuse(*context, stream); refused != CUDA_SUCCESS) return refused;
    }
    return Row::forward(arguments...);
  });
}

// The points that are passed once the stream is idle; for memory pools.
StreamOrder::Points reach_of(CUstream stream) {
  Session* session = nullptr;
  Context* context = nullptr;
  if (!stream_order().active() || require_stream(&session, &context, stream) != CUDA_SUCCESS) return {};
  return stream_order().reach(order_key(*context, stream));
}

// cuStreamWaitValue32 and related calls.
template <class Row, class... Arguments>
CUresult memory_operations(CUstream stream, const CUstreamBatchMemOpParams* operations, unsigned count,
                           Arguments... arguments) {
  return guarded([&]() -> CUresult {
    if (capture::any()) [[unlikely]] {
      Session* session = nullptr;
      Context* context = nullptr;
      if (const CUresult result = require_stream(&session, &context, stream); result != CUDA_SUCCESS)
        return result;
      const auto captured =
          capture::add(*context, stream, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, [&](NodeWork& work) {
            if (!operations || count == 0) return CUDA_ERROR_INVALID_VALUE;
            work = OperationsWork{{operations, operations + count}};
            return CUDA_SUCCESS;
          });
      if (captured) return *captured;
    }
    if (count == 0) {
      Session* session = nullptr;
      Context* context = nullptr;
      return require_stream(&session, &context, stream);
    }
    Mirrors::Lock lock;
    if (mirrors().any() || compared_copies().any()) [[unlikely]] {
      Session* session = nullptr;
      Context* context = nullptr;
      if (CUresult result = require_stream(&session, &context, stream); result != CUDA_SUCCESS) return result;
      CUresult result = compared_copies().before_work(*context, stream);
      if (result != CUDA_SUCCESS) return result;
      lock = mirrors().before_work(*context, stream, &result);
      if (result != CUDA_SUCCESS) return result;
    }
    note_value_waits();
    return Row::forward(stream, arguments...);
  });
}

CUstreamBatchMemOpParams operation(CUstreamBatchMemOpType type, CUdeviceptr address, uint64_t value,
                                   unsigned flags) {
  CUstreamBatchMemOpParams made{};
  made.waitValue.operation = type;
  made.waitValue.address = address;
  made.waitValue.value64 = value;
  made.waitValue.flags = flags;
  return made;
}

}  // namespace

CUDA_EXPORT CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  return create(stream, flags, priority);
}

CUDA_EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
  if (cuda::is_special_stream(cuda::handle_bits(stream))) return CUDA_ERROR_INVALID_HANDLE;
  capture::forget_stream(stream);
  prepare_stream_destruction(stream);
  return destroy<rows::cuStreamDestroy_v2>(Kind::stream, stream);
}

CUDA_EXPORT CUresult cuStreamQuery(CUstream stream) {
  const auto points = reach_of(stream);
  const CUresult result = unless_captured<rows::cuStreamQuery>(stream, stream);
  if (result == CUDA_SUCCESS) stream_order().passed(points);
  return result == CUDA_SUCCESS && compared_copies().any()
             ? guarded([] { return compared_copies().after_other_wait(); })
             : result;
}
CUDA_EXPORT CUresult cuStreamQuery_ptsz(CUstream stream) {
  return cuStreamQuery(or_per_thread(stream));
}

#define MEMORY_OPERATION(function, type, bits)                                                       \
  CUDA_EXPORT CUresult function(CUstream stream, CUdeviceptr address, cuuint##bits##_t value,        \
                                unsigned int flags) {                                                \
    const CUstreamBatchMemOpParams made = operation(type, address, value, flags);                    \
    return memory_operations<rows::function>(stream, &made, 1, address, value, flags);               \
  }                                                                                                  \
  CUDA_EXPORT CUresult function##_ptsz(CUstream stream, CUdeviceptr address, cuuint##bits##_t value, \
                                       unsigned int flags) {                                         \
    return function(or_per_thread(stream), address, value, flags);                                   \
  }
MEMORY_OPERATION(cuStreamWaitValue32_v2, CU_STREAM_MEM_OP_WAIT_VALUE_32, 32)
MEMORY_OPERATION(cuStreamWaitValue64_v2, CU_STREAM_MEM_OP_WAIT_VALUE_64, 64)
MEMORY_OPERATION(cuStreamWriteValue32_v2, CU_STREAM_MEM_OP_WRITE_VALUE_32, 32)
MEMORY_OPERATION(cuStreamWriteValue64_v2, CU_STREAM_MEM_OP_WRITE_VALUE_64, 64)
#undef MEMORY_OPERATION

CUDA_EXPORT CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count,
                                           CUstreamBatchMemOpParams* operations, unsigned int flags) {
  return memory_operations<rows::cuStreamBatchMemOp_v2>(stream, operations, count, count, operations, flags);
}
CUDA_EXPORT CUresult cuStreamBatchMemOp_v2_ptsz(CUstream stream, unsigned int count,
                                                CUstreamBatchMemOpParams* operations, unsigned int flags) {
  return cuStreamBatchMemOp_v2(or_per_thread(stream), count, operations, flags);
}

CUDA_EXPORT CUresult cuStreamSynchronize(CUstream stream) {
  return synchronize(stream);
}
CUDA_EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream) {
  return synchronize(or_per_thread(stream));
}

CUDA_EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  return wait_event(stream, event, flags);
}
CUDA_EXPORT CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags) {
  return wait_event(or_per_thread(stream), event, flags);
}
