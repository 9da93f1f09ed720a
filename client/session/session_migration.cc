// The part of Session that moves it to another server (docs/adr/0037-migration.md).
#include <algorithm>
#include <thread>

#include "client/process/log.h"
#include "client/process/process.h"
#include "client/session/migrator.h"
#include "client/session/session.h"
#include "common/text/printable.h"
#include "protocol/wire/reader.h"

namespace gpupool::client {
namespace {

// How long a server may wait for the end of work while the program's commands are held back.
constexpr std::chrono::milliseconds kFirstPatience{100}, kLongestPatience{5000};

// A lease that moves gets a token for the other server, which pool-lease writes into the lease file. The
// order to move may arrive earlier.
constexpr std::chrono::milliseconds kTokenTime{2000}, kTokenPause{20};

// The settings for a session with this server, with the token that the lease file has for it.
Result<Settings> settings_for(const std::string& address, Settings settings) {
  settings.server = address;
  const auto named = servers_now();
  // Without a lease the servers share the tenant's token.
  if (named && std::ranges::all_of(*named, [](const auto& server) { return server.token.empty(); }))
    return settings;
  for (const auto stop = std::chrono::steady_clock::now() + kTokenTime;;) {
    const auto servers = servers_now();
    if (!servers) return servers.error();
    for (const LeasedServer& server : *servers) {
      for (const LeasedServer* const one : {&server, server.next.empty() ? nullptr : &server.next.front()}) {
        if (!one || one->endpoint.text() != address) continue;
        settings.token = one->token;
        return settings;
      }
    }
    if (std::chrono::steady_clock::now() > stop)
      return Error{ErrorCode::refused, "the lease has no GPUs at " + address};
    std::this_thread::sleep_for(kTokenPause);
  }
}

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
                               : migrate(address, wish.number);
    if (!migrated) {
      const std::string reason = printable_message(migrated.error().message);
      log_debug("the session stays with server %s: %s", server().c_str(), reason.c_str());
      (void)post(static_cast<uint16_t>(wire::Command::end_migration), nullptr, [&](wire::Writer& writer) {
        writer.put(wire::EndMigration{.number = wish.number, .sequence = 0, .migrated = 0, .reserved = 0});
        writer.put_text(reason);
      });
    }
    if (!busy) migrating_.store(false);
  }).detach();
  return true;
}

Result<void> Session::migrate(const std::string& address, uint64_t wish) {
  if (!connection_->started() || connection_->direct_memory())
    return Error{ErrorCode::refused, "only a session that can be resumed, and not over rdma, can migrate"};
  // Servers of encrypted sessions cannot connect to each other, and the token must not travel in the clear.
  // Two workers of one server can.
  if (server().starts_with("tls://") && address != server())
    return Error{ErrorCode::refused, "encrypted sessions cannot migrate"};
  const auto settings = settings_for(address, settings_);
  if (!settings) return settings.error();
  auto opened = Migrator::open(address, address == server(), *settings);
  if (!opened) return Error{opened.error().code, address + ": " + opened.error().message};
  Migrator& target = **opened;
  if (address == server() && target.reply().server_id != server_id())
    return Error{ErrorCode::refused, address + " has become the address of another server"};
  if (auto same = target.compare(offered_, driver_version_); !same)
    return Error{same.error().code, address + ": " + same.error().message};
  const auto peer = target.target();
  if (!peer) return Error{peer.error().code, address + ": " + peer.error().message};
  auto links = links_.prepare(bulk_parameters(target.reply(), target.server(), target.connection(), false),
                              resume_terms(target.reply(), target.server(), target.options()));
  if (!links) return Error{ErrorCode::unavailable, address + " accepts no bulk connections"};
  const auto result = migrate_to(target, *peer, links, wish);
  if (!result) links_.stay(links);
  return result;
}

Result<void> Session::migrate_to(Migrator& target, const wire::PeerTarget& peer,
                                 const std::shared_ptr<BulkConnections::Prepared>& links, uint64_t wish) {
  if (auto asked = target.ask_to_adopt(); !asked) return asked;
  if (auto begun = begin_migration(peer); !begun) return begun;
  std::string why_not_ready;
  for (auto patience = kFirstPatience;; patience *= 2) {
    const auto migrated = try_to_migrate(target, links, wish, patience, &why_not_ready);
    if (!migrated) return migrated.error();
    if (*migrated) return {};
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
Result<bool> Session::try_to_migrate(Migrator& target,
                                     const std::shared_ptr<BulkConnections::Prepared>& links, uint64_t wish,
                                     std::chrono::milliseconds patience, std::string* why_not_ready) {
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
  } else if (const auto adopted = target.adopted(); !adopted) {
    result = Error{adopted.error().code, target.server().text() + ": " + adopted.error().message};
  } else if (*adopted != queue_.last_sequence()) {
    result = Error{ErrorCode::malformed, target.server().text() + ": it counts another number of commands"};
  } else {
    switch_to(target, links, wish);
  }
  queue_.go_on();
  return result;
}

// Everything of the session is with the target, and no command is underway.
void Session::switch_to(Migrator& target, const std::shared_ptr<BulkConnections::Prepared>& links,
                        uint64_t wish) {
  reconnector_.expect_switch();
  wire::Buffer farewell;
  wire::Writer writer(farewell);
  writer.put(
      wire::EndMigration{.number = wish, .sequence = queue_.last_sequence(), .migrated = 1, .reserved = 0});
  queue_.send_farewell(wire::Command::end_migration, farewell);
  log_debug("the session moves from server %s to %s", server().c_str(), target.server().text().c_str());
  server_.store(new std::string(target.server().text()),
                std::memory_order_release);  // never freed: see server()
  server_id_.store(target.reply().server_id, std::memory_order_relaxed);
  take_image_terms(target.reply());
  links_.switch_to(links);
  reconnector_.switch_to(resume_terms(target.reply(), target.server(), target.options()),
                         target.take_connection());
}

}  // namespace gpupool::client
