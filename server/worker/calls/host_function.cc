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
  // Unknown: its context was destroyed meanwhile. Nobody waits for the answer.
  session.callbacks.done(body->callback);
  return CUDA_SUCCESS;
}

}  // namespace gpupool::worker::commands
