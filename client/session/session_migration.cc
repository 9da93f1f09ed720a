// The part of Session that moves it to another server (docs/adr/0037-migration.md).
#include <thread>
#include <utility>

#include "client/process/log.h"
#include "client/session/migrator.h"
#include "client/session/session.h"
#include "client/timeline/timeline.h"
#include "common/text/printable.h"
#include "protocol/wire/reader.h"

namespace gpupool::client {
namespace {

// How long a server may wait for the end of work while the program's commands are held back.
constexpr std::chrono::milliseconds kFirstPatience{100}, kLongestPatience{5000};
// The other server may have to compile code and zero memory.
constexpr std::chrono::seconds kAdoptTime{120};

Error refusal(const Waiter& waiter) {
  wire::Reader reader(waiter.body);
  const auto reason = reader.get_text();
  return {ErrorCode::refused, reason.empty() ? "an error is yet to be reported" : std::string(reason)};
}

}  // namespace

bool Session::on_migration_wish(std::span<const std::byte> body) {
  wire::Reader reader(body);
  const auto wish = reader.get<wire::MigrationWish>();
  const auto text = reader.get_bytes(reader.remaining());
  if (!reader.finished()) return false;
  const std::string to(reinterpret_cast<const char*>(text.data()), text.size());
  const std::string address = to == wire::kSameServer ? server() : to;
  // On a thread of its own, because this one reads the server's messages.
  std::thread([this, wish, address] {
    const bool busy = migrating_.exchange(true);
    const auto migrated = busy ? Result<void>(Error{ErrorCode::refused, "the session is migrating already"})
                          : address.empty() ? suspend(wish.number)
                                            : migrate(address, wish.number);
    if (!migrated) {
      const std::string reason = printable_message(migrated.error().message);
      log_debug("the session stays with server %s: %s", server().c_str(), reason.c_str());
      (void)post(static_cast<uint16_t>(wire::Command::end_migration), nullptr, [&](wire::Writer& writer) {
        writer.put(wire::EndMigration{.number = wish.number, .sequence = 0, .migrated = 0, .reserved = 0});
        writer.put_text(reason);
      });
    }
    if (busy) return;
    // A wish that came while the session was arriving elsewhere. poold asks for nothing else until it is
    // answered.
    const auto next = std::exchange(wish_on_arrival_, {});
    migrating_.store(false);
    if (!next.empty()) (void)on_migration_wish(next);
  }).detach();
  return true;
}

Result<void> Session::migrate(const std::string& address, uint64_t wish) {
  if (!connection_->started() || connection_->direct_memory())
    return Error{ErrorCode::refused, "only a session that can be resumed, and not over rdma, can migrate"};
  // The key with which a server may send to the other one must not travel in the clear, nor must the token.
  if (server().starts_with("tls://") != address.starts_with("tls://")) {
    return Error{ErrorCode::refused, server().starts_with("tls://")
                                         ? "an encrypted session moves to tls:// addresses only"
                                         : "an unencrypted session moves to tcp:// addresses only"};
  }
  const auto settings = settings_for(address, settings_);
  if (!settings) return settings.error();
  auto opened = Migrator::open(address, *settings);
  if (!opened) return Error{opened.error().code, address + ": " + opened.error().message};
  Migrator& target = **opened;
  if (address == server() && target.reply().server_id != server_id())
    return Error{ErrorCode::refused, address + " has become the address of another server"};
  if (auto same = target.compare(offered_, driver_version_); !same)
    return Error{same.error().code, address + ": " + same.error().message};
  const auto peer = target.target(links_.parameters()->peer_end, address == server());
  if (!peer) return Error{peer.error().code, address + ": " + peer.error().message};
  auto links =
      links_.prepare(bulk_parameters(target.reply(), target.server(), target.connection(), false),
                     resume_terms(target.reply(), target.server(), target.options(), target.settings()));
  if (!links) return Error{ErrorCode::unavailable, address + " accepts no bulk connections"};
  const auto result = migrate_to(target, *peer, links, wish);
  if (!result) links_.stay(links);
  return result;
}

Result<void> Session::migrate_to(Migrator& target, const wire::PeerTarget& peer,
                                 const std::shared_ptr<BulkConnections::Prepared>& links, uint64_t wish) {
  if (auto asked = target.ask_to_adopt(); !asked) return asked;
  if (auto begun = begin_migration(peer); !begun) return begun;
  return leave_when_ready([&]() -> Result<void> {
    if (auto adopted = check_adopted(target, kAdoptTime); !adopted) return adopted;
    reconnector_.expect_switch();
    say_farewell(wish);
    continue_on(target, links);
    return {};
  });
}

Result<void> Session::leave_when_ready(const GoOn& go_on_elsewhere) {
  std::string why_not_ready;
  for (auto patience = kFirstPatience;; patience *= 2) {
    const auto left = try_to_leave(patience, &why_not_ready, go_on_elsewhere);
    if (!left) return left.error();
    if (*left) return {};
    if (patience > kLongestPatience)
      return Error{ErrorCode::refused, why_not_ready.empty()
                                           ? "its work on the device does not end, or waits for the program"
                                           : why_not_ready};
    std::this_thread::sleep_for(patience);
  }
}

// Has the server send what the session has, while the program goes on. Returns when little is left.
Result<void> Session::begin_migration(const wire::PeerTarget& peer) {
  for (auto pause = kFirstPatience;; pause *= 2) {
    const auto begun = try_to_begin(peer);
    if (!begun) return begun.error();
    if (*begun) return {};
    if (pause > kLongestPatience)
      return Error{ErrorCode::refused, "its memory is being zeroed, or it cannot end an earlier migration"};
    std::this_thread::sleep_for(pause);
  }
}

// Returns false if the server is not ready.
Result<bool> Session::try_to_begin(const wire::PeerTarget& peer) {
  Waiter waiter{.id = static_cast<uint16_t>(wire::Command::begin_migration)};
  queue_.append(
      waiter.id, wire::kWantsReply, 0, [&](wire::Writer& writer) { writer.put(wire::BeginMigration{peer}); },
      [&](uint64_t number) {
        waiter.sequence = number;
        receiver_.expect(waiter);
      });
  queue_.flush();
  if (!receiver_.wait(waiter)) return Error{ErrorCode::lost, "the connection was lost"};
  if (waiter.result == CUDA_ERROR_NOT_READY) return false;
  if (waiter.result != CUDA_SUCCESS) return refusal(waiter);
  return true;
}

// Returns false if the server is not ready. The program's commands wait meanwhile.
Result<bool> Session::try_to_leave(std::chrono::milliseconds patience, std::string* why_not_ready,
                                   const GoOn& go_on_elsewhere) {
  // Neither copies between servers nor descriptors may be underway.
  const std::scoped_lock others(peer_copy_, share_mutex_);
  Waiter waiter{.id = static_cast<uint16_t>(wire::Command::migrate_session)};
  const wire::MigrateSession body{static_cast<uint32_t>(patience.count()), 0};
  queue_.append_last(wire::Command::migrate_session, body, [&](uint64_t number) {
    waiter.sequence = number;
    receiver_.expect(waiter);
  });
  queue_.flush();
  Result<bool> result = true;
  if (!receiver_.wait(waiter)) {
    result = Error{ErrorCode::lost, "the connection was lost"};
  } else if (waiter.result == CUDA_ERROR_NOT_READY) {
    wire::Reader reader(waiter.body);
    *why_not_ready = reader.get_text();
    result = false;
  } else if (waiter.result != CUDA_SUCCESS) {
    result = refusal(waiter);
  } else if (auto gone_on = go_on_elsewhere(); !gone_on) {
    result = gone_on.error();
  }
  queue_.go_on();
  return result;
}

// Waits until the target has all of the session.
Result<void> Session::check_adopted(Migrator& target, std::chrono::seconds longest) {
  const auto adopted = target.adopted(longest);
  if (!adopted) return Error{adopted.error().code, target.server().text() + ": " + adopted.error().message};
  if (*adopted != queue_.last_sequence())
    return Error{ErrorCode::malformed, target.server().text() + ": it counts another number of commands"};
  return {};
}

// Tells the present server that the session has left it.
void Session::say_farewell(uint64_t wish) {
  wire::Buffer farewell;
  wire::Writer writer(farewell);
  writer.put(
      wire::EndMigration{.number = wish, .sequence = queue_.last_sequence(), .migrated = 1, .reserved = 0});
  queue_.send_farewell(wire::Command::end_migration, farewell);
}

// Everything of the session is with the target, and no command is underway. Call expect_switch() of the
// reconnector before the present connection can end.
void Session::continue_on(Migrator& target, const std::shared_ptr<BulkConnections::Prepared>& links) {
  const int64_t begin = timeline::now();
  log_debug("the session goes on from server %s to %s", server().c_str(), target.server().text().c_str());
  server_names_.push_front(target.server().text());
  server_.store(&server_names_.front(), std::memory_order_release);
  server_id_.store(target.reply().server_id, std::memory_order_relaxed);
  makes_timeline_ = target.reply().makes_timeline;
  take_image_terms(target.reply());
  remember_home(target.reply());
  {
    const std::lock_guard lock(server_mutex_);
    unreachable_peers_.clear();
  }
  wish_on_arrival_ = target.take_wish();
  links_.switch_to(links);
  reconnector_.switch_to(resume_terms(target.reply(), target.server(), target.options(), target.settings()),
                         target.take_connection());
  timeline::note_session(index(), "session moved", begin, server());
}

}  // namespace gpupool::client
