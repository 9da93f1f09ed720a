#include "protocol/wire/commands.h"
#include "protocol/wire/timeline.h"
#include "server/worker/handlers/commands.h"

namespace gpupool::worker::commands {

Outcome ping(Session& session, Command& command) {
  if (!command.body.finished()) return bad_body();
  session.outbox.send(wire::MessageKind::pong, 0, command.header.sequence);
  return Outcome::parked();
}

Outcome read_clock(Session& session, Command& command) {
  const auto body = read_exact_body<wire::ReadClock>(command);
  if (!body) return bad_body();
  if (!session.timeline.on()) return CUDA_ERROR_NOT_SUPPORTED;
  session.timeline.answer_clock(command.header.sequence, body->flags);
  return CUDA_SUCCESS;
}

Outcome goodbye(Session&, Command& command) {
  if (!command.body.finished()) return bad_body();
  return CUDA_SUCCESS;
}

Outcome acknowledge(Session& session, Command& command) {
  const auto body = read_exact_body<wire::Acknowledge>(command);
  if (!body) return bad_body();
  if (!session.resumption) return CUDA_SUCCESS;
  session.start.resumable->acknowledge(body->received);
  if (body->leaving != 0) session.resumption->client_leaves();
  return CUDA_SUCCESS;
}

Outcome move_addresses(Session& session, Command& command) {
  const auto body = read_exact_body<wire::MoveAddresses>(command);
  if (!body) return bad_body();
  const CUresult result = session.memory.move(body->preferred_base, body->size);
  if (result == CUDA_SUCCESS) {
    wire::Writer(session.replies.body).put(wire::AddressRange{session.memory.base(), session.memory.size()});
  }
  return result;
}

Outcome avoid_addresses(Session& session, Command& command) {
  const auto body = read_exact_body<wire::AddressRange>(command);
  if (!body) return bad_body();
  session.memory.reserve_addresses(body->base, body->size);
  return CUDA_SUCCESS;
}

}  // namespace gpupool::worker::commands
