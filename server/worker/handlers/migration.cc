// Handlers of the migration between two workers (migration.h of protocol/wire and of this program).
#include "protocol/wire/migration.h"

#include "common/log/log.h"
#include "server/worker/handlers/commands.h"
#include "server/worker/migration/array_contents.h"
#include "server/worker/migration/departure.h"
#include "server/worker/migration/hidden_memory.h"
#include "server/worker/migration/variables.h"

namespace gpupool::worker::commands {
namespace {

constexpr uint32_t kMostPatienceMs = 30'000;

void log_refusal(Session& session, std::string_view reason) {
  log::warning("session_cannot_migrate",
               {{"session", session.start.session_number}, {"reason", std::string(reason)}});
}

Outcome refuse(Session& session, std::string_view reason) {
  session.replies.body.clear();
  wire::Writer(session.replies.body).put_text(reason);
  log_refusal(session, reason);
  return CUDA_ERROR_NOT_SUPPORTED;
}

// Where the departure connects to: another server, or the file that poold has asked to suspend the session
// to.
Departure::Connect connection_for_departure(Session& session, const wire::PeerTarget& target) {
  if (!wire::is_file(target)) return [&session, target] { return session.peers.open(target); };
  const int file = session.migration_requests.take_file();
  if (file < 0) return nullptr;
  auto adopted = transport::adopt_stream(file, "poold", transport::Options());
  if (!adopted) return nullptr;
  const auto connection = std::make_shared<std::unique_ptr<transport::Connection>>(std::move(*adopted));
  return [connection]() -> Result<std::unique_ptr<transport::Connection>> { return std::move(*connection); };
}

std::optional<std::string> obstacle(Session& session) {
  const char* const what = migration_obstacle(session);
  if (!what) return std::nullopt;
  return std::string("the session has ") + what + ", which cannot migrate";
}

}  // namespace

Outcome adopt_session(Session& session, Command& command) {
  if (!command.body.finished() || !command.wants_reply()) return bad_body();
  if (command.header.sequence != wire::kAdoptSequence) return CUDA_ERROR_ILLEGAL_STATE;
  const auto last = session.adoption.run();
  if (!last || *last < command.header.sequence) {
    const std::string reason = last ? "a wrong number of the last command" : last.error().message;
    const Outcome refused = refuse(session, reason);
    session.outbox.send(wire::MessageKind::reply, refused.result, command.header.sequence,
                        session.replies.body);
    session.outbox.end("the session was not adopted: " + reason);
    return Outcome::lost();
  }
  session.memory.retire(*last);
  session.memory.collect();
  session.executor.set_last_sequence(*last);
  session.replies.body.clear();
  wire::Writer(session.replies.body).put(wire::AdoptedSession{*last});
  log::info("session_adopted", {{"session", session.start.session_number}});
  return CUDA_SUCCESS;
}

Outcome begin_migration(Session& session, Command& command) {
  const auto body = read_exact_body<wire::BeginMigration>(command);
  if (!body || !command.wants_reply() || !wire::is_well_formed(body->target) ||
      body->target.copy != wire::kAdoptSequence)
    return bad_body();
  session.migration_requests.client_tries();
  if (const auto why_not = obstacle(session)) return refuse(session, *why_not);
  if (session.departure.must_wait()) return CUDA_ERROR_NOT_READY;
  const bool to_file = wire::is_file(body->target);
  const auto connect = connection_for_departure(session, body->target);
  if (!connect) return refuse(session, "poold has not asked to suspend the session");
  session.departure.begin(
      connect, to_file, [&session, sequence = command.header.sequence](const auto& settled) {
        const std::string reason = settled ? "" : settled.error().message;
        wire::Buffer text;
        wire::Writer(text).put_text(reason);
        if (settled) text.clear();
        session.outbox.send(wire::MessageKind::reply, settled ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED,
                            sequence, text);
        if (!settled) log_refusal(session, reason);
      });
  return Outcome::parked();
}

Outcome migrate_session(Session& session, Command& command) {
  const auto body = read_exact_body<wire::MigrateSession>(command);
  if (!body || !command.wants_reply() || body->patience_ms > kMostPatienceMs || body->reserved != 0)
    return bad_body();
  if (!session.departure.begun()) return CUDA_ERROR_ILLEGAL_STATE;
  if (const auto why_not = obstacle(session)) return refuse(session, *why_not);
  if (const char* const what = passing_obstacle(session)) {
    wire::Writer(session.replies.body).put_text(std::string("the session has ") + what);
    return CUDA_ERROR_NOT_READY;
  }
  if (!await_idle(session, std::chrono::milliseconds(body->patience_ms))) return CUDA_ERROR_NOT_READY;
  session.scrubber.finish_all();  // replies may wait for it
  const auto sent = session.departure.finish(session.executor.last_sequence());
  session.departure.end();
  if (!sent) return refuse(session, sent.error().message);
  session.outbox.be_silent_after(command.header.sequence);
  return CUDA_SUCCESS;
}

Outcome end_migration(Session& session, Command& command) {
  const auto answer = command.body.get<wire::EndMigration>();
  const std::string_view reason = answer.migrated == 0 ? command.body.get_text() : std::string_view();
  if (!command.body.finished()) return bad_body();
  if (answer.migrated == 0) session.outbox.speak();
  session.departure.end();
  if (!session.migration_requests.answered(answer, reason))
    return Outcome::malformed("it answers a request to migrate that was not made");
  return CUDA_SUCCESS;
}

Outcome place_variable(Session& session, Command& command) {
  const auto head = command.body.get<wire::PlaceVariable>();
  const std::string name(command.body.get_text());
  if (!command.body.finished() || name.find('\0') != std::string::npos) return bad_body();
  // The device library keeps the wish until such a variable is loaded.
  if (!session.adoption.running()) return CUDA_ERROR_ILLEGAL_STATE;
  if (session.api.wish_variable) session.api.wish_variable(name.c_str(), head.address);
  return CUDA_SUCCESS;
}

Outcome fill_variable(Session& session, Command& command) {
  const auto head = command.body.get<wire::FillVariable>();
  const std::string name(command.body.get_text());
  const auto bytes = command.body.get_bytes(command.body.remaining());
  if (!command.body.finished() || bytes.size() != head.size || name.find('\0') != std::string::npos)
    return bad_body();
  ContextState* const context = session.contexts.enter_named(command.header.context);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  Variable found;
  if (const CUresult result = find_variable(session, head.owner, name, &found); result != CUDA_SUCCESS)
    return result;
  if (head.offset > found.size || bytes.size() > found.size - head.offset) return CUDA_ERROR_INVALID_VALUE;
  return session.scrubber.copy_in(found.address + head.offset, bytes.data(), bytes.size(), context->device);
}

Outcome fill_array(Session& session, Command& command) {
  const auto head = command.body.get<wire::FillArray>();
  const auto bytes = command.body.get_bytes(command.body.remaining());
  const uint64_t slice = uint64_t{head.width} * head.height;
  const bool fits = slice != 0 && bytes.size() % slice == 0 && bytes.size() / slice == head.depth;
  if (!command.body.finished() || head.reserved != 0 || !fits) return bad_body();
  return write_part(session, head, bytes);
}

Outcome fill_memory(Session& session, Command& command) {
  const auto head = command.body.get<wire::FillMemory>();
  const auto bytes = command.body.get_bytes(command.body.remaining());
  if (!command.body.finished() || (head.memory == 0) == (head.address == 0)) return bad_body();
  return write_part(session, head, bytes);
}

}  // namespace gpupool::worker::commands
