#include "protocol/wire/commands.h"
#include "server/worker/calls/commands.h"

namespace gpupool::worker::commands {

Outcome hold_stream(Executor& session, Command& command) {
  const auto body = only<wire::HoldStream>(command);
  if (!body) return bad_body();
  session.enter(command);
  StreamState* const stream = session.table.use_stream(body->stream);
  if (!stream) return session.contexts.current() ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT;
  session.contexts.enter(stream->context);
  const CUresult result = session.holds.hold(*stream, body->hold);
  if (result != CUDA_ERROR_NOT_SUPPORTED) return result;
  // Without stream memory operations: as a host function whose turn the client need not hear of.
  if (!session.api.cuLaunchHostFunc) return result;
  HostCallbacks::Turn* const turn = session.callbacks.add(body->hold, stream->context->object);
  if (!turn) return CUDA_ERROR_INVALID_VALUE;
  const CUresult launched = session.api.cuLaunchHostFunc(stream->stream, &HostCallbacks::run, turn);
  if (launched != CUDA_SUCCESS) session.callbacks.remove(body->hold);
  return launched;
}

Outcome resume_stream(Executor& session, Command& command) {
  const auto body = only<wire::ResumeStream>(command);
  if (!body) return bad_body();
  // Unknown: its context was destroyed meanwhile, or the stream could not be held. Nobody waits for the answer.
  if (!session.holds.resume(body->hold, session.contexts)) session.callbacks.done(body->hold);
  return CUDA_SUCCESS;
}

}  // namespace gpupool::worker::commands
