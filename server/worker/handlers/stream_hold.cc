#include "protocol/wire/commands.h"
#include "server/worker/handlers/commands.h"

namespace gpupool::worker::commands {

Outcome hold_stream(Session& session, Command& command) {
  const auto body = read_exact_body<wire::HoldStream>(command);
  if (!body) return bad_body();
  session.contexts.enter_named(command.header.context);
  StreamState* const stream = session.table.use_stream(body->stream);
  if (!stream) return session.contexts.current() ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT;
  if (session.gates.take_early_open(body->hold)) return CUDA_SUCCESS;
  return session.gates.close_by_number(*stream, command.header.sequence, "another server", body->hold)
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

Outcome own_stream(Session& session, Command& command) {
  const auto body = read_exact_body<wire::OwnStream>(command);
  if (!body) return bad_body();
  session.contexts.enter_named(command.header.context);
  StreamState* const stream = session.table.find_stream(body->stream);
  if (!stream || !stream->stream) return CUDA_ERROR_INVALID_HANDLE;
  stream->own = true;
  return CUDA_SUCCESS;
}

Outcome resume_stream(Session& session, Command& command) {
  const auto body = read_exact_body<wire::ResumeStream>(command);
  if (!body) return bad_body();
  session.gates.open_by_number(body->hold);
  return CUDA_SUCCESS;
}

Outcome await_room(Session& session, Command& command) {
  const auto body = read_exact_body<wire::AwaitRoom>(command);
  if (!body || !command.wants_reply()) return bad_body();
  session.back_pressure.await_room(command.header, body->stream);
  return Outcome::parked();
}

}  // namespace gpupool::worker::commands
