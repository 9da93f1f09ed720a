#include <utility>

#include "protocol/wire/commands.h"
#include "server/worker/calls/commands.h"

namespace gpupool::worker::commands {

Outcome host_function(Executor& session, Command& command) {
  const auto body = only<wire::HostFunction>(command);
  if (!body) return bad_body();
  session.enter(command);
  StreamState* const stream = session.table.use_stream(body->stream);
  if (!stream) return session.contexts.current() ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT;
  session.contexts.enter(stream->context);
  const auto gate = session.gates.close_by_number(*stream, "a host function", body->callback);
  if (!gate) return CUDA_ERROR_INVALID_VALUE;
  // What the stream did before, and what it copied, has reached the client before it hears of the function's turn.
  const auto tell = [&session, callback = body->callback] {
    session.publish();
    session.outbox.send(wire::MessageKind::host_callback, 0, 0, std::as_bytes(std::span(&callback, 1)));
  };
  if (session.is_idle(*stream)) {
    session.fetch_output(*stream);
    tell();
    return CUDA_SUCCESS;
  }
  const bool parked = session.when_done(*stream, "the stream to get to a host function", [tell, gate](CUresult result) {
    if (result == CUDA_SUCCESS) tell();
    else gate->open();  // CUDA calls no host function after an error
  });
  if (parked) return CUDA_SUCCESS;
  gate->open();
  return CUDA_ERROR_OUT_OF_MEMORY;
}

Outcome host_function_done(Executor& session, Command& command) {
  const auto body = only<wire::HostFunctionDone>(command);
  if (!body) return bad_body();
  // No gate: a node of a graph's, or one whose context was destroyed meanwhile. Nobody waits for the answer.
  const auto end = [&session, gate = session.gates.take(body->callback), callback = body->callback] {
    if (gate) gate->open();
    else session.callbacks.done(callback);
  };
  StreamState* const stream = body->stream ? session.table.find_stream(body->stream) : nullptr;
  if (stream && session.contexts.enter(stream->context) == CUDA_SUCCESS) {
    if (session.when_done(*stream, "work before a host function's end", [end](CUresult) { end(); })) return CUDA_SUCCESS;
    session.api.cuStreamSynchronize(stream->stream);  // short of events or threads
  }
  end();
  return CUDA_SUCCESS;
}

}  // namespace gpupool::worker::commands
