// Handlers for copies whose data travels on the bulk connections, or directly from and to the client's
// memory. They start the copy and never wait for its data.
#include "protocol/wire/copies.h"
#include "protocol/wire/peers.h"
#include "server/worker/copies/incoming_copy.h"
#include "server/worker/copies/outgoing_copy.h"
#include "server/worker/copies/remote_copy.h"
#include "server/worker/handlers/commands.h"
#include "server/worker/handlers/copy_ranges.h"

namespace gpupool::worker::commands {
namespace {

bool sane(const wire::BulkCopy& copy) {
  return copy.width != 0 && copy.rows != 0 && copy.width <= wire::kMaxBulkCopyBytes &&
         copy.rows <= wire::kMaxBulkCopyBytes / copy.width &&
         (copy.rows == 1 || copy.width <= wire::kBulkChunkBytes);
}

DeviceRows rows_of(const wire::BulkCopy& copy) {
  return {copy.device, copy.pitch, copy.width, copy.rows};
}

// A reply ends every copy. If the command does not want a reply, its error is also deferred to a later reply.
Outcome fail(Outbox& outbox, const Command& command, CUresult why) {
  if (!command.wants_reply()) outbox.send(wire::MessageKind::reply, why, command.header.sequence);
  return why;
}

}  // namespace

void announce_bulk_to_device(Copies& copies, const Command& command, const CommandOrder& order) {
  wire::Reader body = command.body;
  const auto copy = body.get<wire::BulkCopy>();
  if (!body.finished() || !sane(copy)) return;
  ContextState* const context = order.stream ? order.stream->context : nullptr;
  const auto announced =
      std::make_shared<IncomingCopy>(copies, command.header.sequence, context, rows_of(copy));
  if (context) {
    copies.contexts.enter(context);
    announced->prepare(*context);
  }
  copies.bulk.announce(command.header.sequence, announced);
}

Outcome bulk_to_device(Session& session, Command& command) {
  const uint64_t sequence = command.header.sequence;
  auto incoming = std::dynamic_pointer_cast<IncomingCopy>(session.copies.bulk.take_announced(sequence));
  const auto copy = read_exact_body<wire::BulkCopy>(command);
  if (!copy || !sane(*copy) || (copy->flags & ~(wire::kCopyOrdersStreams | wire::kCopyPassesOthers)) != 0)
    return bad_body();
  ContextState* const context = session.contexts.enter_named(command.header.context);
  const auto touched = extent(copy->pitch, copy->width, copy->rows);
  const bool passes = (copy->flags & wire::kCopyPassesOthers) != 0;
  StreamState* stream =
      passes ? session.table.find_stream(copy->stream) : session.table.use_stream(copy->stream);
  CUresult result = stream ? CUDA_SUCCESS : context ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT;
  if (stream && passes) session.contexts.note_use_unordered(*stream);
  if (stream && (!touched || !session.memory.owns(copy->device, *touched))) {
    result = CUDA_ERROR_INVALID_VALUE;
    stream = nullptr;
  }
  if (stream) session.contexts.enter(stream->context);
  const bool announced = incoming != nullptr;
  if (!announced)
    incoming = std::make_shared<IncomingCopy>(session.copies, sequence, stream ? stream->context : nullptr,
                                              rows_of(*copy));
  if (!announced) session.copies.bulk.add(sequence, incoming);
  if (stream)
    result = incoming->begin(*stream, (copy->flags & wire::kCopyOrdersStreams) != 0);
  else
    incoming->discard_data();
  if (!announced) session.copies.bulk.passed(sequence);
  return result;
}

Outcome bulk_from_device(Session& session, Command& command) {
  const auto copy = read_exact_body<wire::BulkCopy>(command);
  if (!copy || !sane(*copy) || copy->flags != 0) return bad_body();
  session.contexts.enter_named(command.header.context);
  StreamState* const stream = session.table.use_stream(copy->stream);
  if (!stream)
    return fail(session.outbox, command,
                session.contexts.current() ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT);
  const auto touched = extent(copy->pitch, copy->width, copy->rows);
  if (!touched || !session.memory.owns(copy->device, *touched))
    return fail(session.outbox, command, CUDA_ERROR_INVALID_VALUE);
  if (!session.copies.connections.any()) return fail(session.outbox, command, CUDA_ERROR_NOT_SUPPORTED);
  session.contexts.enter(stream->context);
  const CUresult deferred = command.wants_reply() ? session.replies.take_deferred() : CUDA_SUCCESS;
  const CUresult result = OutgoingCopy::start(session.copies, {OutgoingCopy::Way::links}, *stream,
                                              rows_of(*copy), command.header.sequence, deferred);
  return result == CUDA_SUCCESS ? Outcome::parked() : fail(session.outbox, command, result);
}

namespace {

// A copy between the device and memory that the client has registered.
Outcome direct_copy(Session& session, Command& command, bool to_device) {
  const auto copy = read_exact_body<wire::DirectCopy>(command);
  const uint32_t allowed = to_device ? wire::kCopyOrdersStreams | wire::kCopyPassesOthers : 0;
  if (!copy || !sane(copy->rows) || (copy->rows.flags & ~allowed) != 0) return bad_body();
  session.contexts.enter_named(command.header.context);
  const wire::BulkCopy& rows = copy->rows;
  const bool passes = (rows.flags & wire::kCopyPassesOthers) != 0;
  StreamState* const stream =
      passes ? session.table.find_stream(rows.stream) : session.table.use_stream(rows.stream);
  if (!stream)
    return fail(session.outbox, command,
                session.contexts.current() ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT);
  if (passes) session.contexts.note_use_unordered(*stream);
  const auto touched = extent(rows.pitch, rows.width, rows.rows);
  if (!touched || !session.memory.owns(rows.device, *touched) ||
      copy->memory > ~uint64_t{0} - rows.width * rows.rows) {
    return fail(session.outbox, command, CUDA_ERROR_INVALID_VALUE);
  }
  if (!session.copies.remote.memory()) return fail(session.outbox, command, CUDA_ERROR_NOT_SUPPORTED);
  session.contexts.enter(stream->context);
  const CUresult deferred = command.wants_reply() ? session.replies.take_deferred() : CUDA_SUCCESS;
  const bool orders_streams = (rows.flags & wire::kCopyOrdersStreams) != 0;
  const CUresult result = RemoteCopy::start(session.copies, *stream, rows_of(rows),
                                            {copy->memory, copy->key, to_device, orders_streams},
                                            command.header.sequence, deferred);
  return result == CUDA_SUCCESS ? Outcome::parked() : fail(session.outbox, command, result);
}

}  // namespace

Outcome direct_to_device(Session& session, Command& command) {
  return direct_copy(session, command, true);
}
Outcome direct_from_device(Session& session, Command& command) {
  return direct_copy(session, command, false);
}

// Sent by clients older than copy_to_peer; rejected without using anything in it.
Outcome bulk_to_peer(Session&, Command& command) {
  const auto copy = command.body.get<wire::PeerCopy>();
  for (int texts = 0; texts < 3; ++texts) (void)command.body.get_text();
  if (!command.body.finished() || !command.wants_reply() || !sane(copy.rows) || copy.rows.flags != 0)
    return bad_body();
  return CUDA_ERROR_NOT_SUPPORTED;
}

Outcome copy_to_peer(Session& session, Command& command) {
  const auto copy = read_exact_body<wire::CopyToPeer>(command);
  if (!copy)
    return Outcome::malformed(
        "a copy to another server has the wrong length: address, session id and key have 16, 16 and 32 "
        "bytes");
  const wire::BulkCopy& rows = copy->rows;
  if (!command.wants_reply() || !sane(rows) || rows.flags != 0 || !wire::is_well_formed(copy->target))
    return bad_body();
  session.contexts.enter_named(command.header.context);
  StreamState* const stream = session.table.use_stream(rows.stream);
  if (!stream) return session.contexts.current() ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT;
  const auto touched = extent(rows.pitch, rows.width, rows.rows);
  if (!touched || !session.memory.owns(rows.device, *touched)) return CUDA_ERROR_INVALID_VALUE;
  auto peer = session.peers.connection_to(copy->target);
  if (!peer) return CUDA_ERROR_NOT_SUPPORTED;
  session.contexts.enter(stream->context);
  const CUresult result =
      OutgoingCopy::start(session.copies, {OutgoingCopy::Way::peer, std::move(peer), copy->target}, *stream,
                          rows_of(rows), command.header.sequence, CUDA_SUCCESS);
  return result == CUDA_SUCCESS ? Outcome::parked() : Outcome(result);
}

Outcome cancel_bulk(Session& session, Command& command) {
  const auto body = read_exact_body<wire::CancelBulk>(command);
  if (!body) return bad_body();
  const auto copy = std::dynamic_pointer_cast<IncomingCopy>(session.copies.bulk.find(body->copy));
  if (!copy) return CUDA_SUCCESS;  // all data has arrived
  session.copies.connections.drop_peers();
  copy->cancel();
  session.copies.bulk.remove(body->copy);
  return CUDA_SUCCESS;
}

}  // namespace gpupool::worker::commands
