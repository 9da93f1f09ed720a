#include "protocol/wire/commands.h"
#include "server/worker/calls/commands.h"

namespace gpupool::worker::commands {

Outcome host_function(Executor& session, Command& command) {
  const auto body = only<wire::HostFunction>(command);
  if (!body) return bad_body();
  session.enter(command);
  StreamState* const stream = session.table.use_stream(body->stream);
  if (!stream) return session.contexts.current() ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT;
  if (!session.api.cuLaunchHostFunc) return CUDA_ERROR_NOT_SUPPORTED;
  session.contexts.enter(stream->context);
  HostCallbacks::Turn* const turn = session.callbacks.add(body->callback, stream->context->object);
  if (!turn) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = session.api.cuLaunchHostFunc(stream->stream, &HostCallbacks::run, turn);
  if (result != CUDA_SUCCESS) session.callbacks.remove(body->callback);
  return result;
}

Outcome host_function_done(Executor& session, Command& command) {
  const auto body = only<wire::HostFunctionDone>(command);
  if (!body) return bad_body();
  const uint64_t callback = body->callback;
  StreamState* const stream = body->stream ? session.table.find_stream(body->stream) : nullptr;
  if (stream && session.contexts.enter(stream->context) == CUDA_SUCCESS) {
    const auto pool = stream->context->events;
    const CUcontext context = stream->context->object;
    const CUevent event = pool->take();
    // Goes back also when the session ends before a thread waits for it.
    std::shared_ptr<void> lent(event, [pool](void* lent) {
      if (lent) pool->give(static_cast<CUevent>(lent));
    });
    if (event && session.api.cuEventRecord(event, stream->stream) == CUDA_SUCCESS) {
      const bool parked = session.waits.submit(context, [&session, lent, context, callback]() mutable {
        make_current(session.api, context);
        session.api.cuEventSynchronize(static_cast<CUevent>(lent.get()));
        lent.reset();
        session.callbacks.done(callback);
        make_current(session.api, nullptr);
      });
      if (parked) return CUDA_SUCCESS;
    }
    session.api.cuStreamSynchronize(stream->stream);  // short of events or threads
  }
  // Unknown: its context was destroyed meanwhile. Nobody waits for the answer.
  session.callbacks.done(callback);
  return CUDA_SUCCESS;
}

}  // namespace gpupool::worker::commands
