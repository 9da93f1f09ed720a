// The part of Suspensions that hands the suspended sessions over to this process's next program, and takes
// them over from the previous one.
#include <algorithm>
#include <utility>

#include "common/log/log.h"
#include "common/text/printable.h"
#include "protocol/wire/peers.h"
#include "server/poold/upgrade/values.h"
#include "server/poold/workers/saved_client.h"
#include "server/poold/workers/suspensions.h"
#include "server/suspension/record_file.h"

namespace gpupool::server {
namespace {

using std::chrono::milliseconds;

void save_file(const SuspendedFiles::File& from, upgrade::SuspendedFile& to) {
  to.set_memory(from.memory ? from.memory->number() : -1);
  to.set_path(from.path);
  to.set_bytes(from.bytes);
  if (from.secret) to.set_secret(from.secret->data(), from.secret->size());
  to.set_owned(from.owned);
}

SuspendedFiles::File file_of(const upgrade::SuspendedFile& from) {
  SuspendedFiles::File to;
  if (from.memory() >= 0) to.memory = std::make_shared<const SuspendedFiles::Descriptor>(from.memory());
  to.path = from.path();
  to.bytes = from.bytes();
  if (!from.secret().empty()) upgrade::copy_bytes(from.secret(), to.secret.emplace());
  to.owned = from.owned();
  return to;
}

void save_session(const SuspendedSession& from, upgrade::SuspendedSession& to) {
  to.set_number(from.number);
  to.set_header(from.header.SerializeAsString());
  to.set_file_version(suspension::RecordFormat::kVersion);
  to.set_state(static_cast<uint32_t>(from.state));
  save_file(from.file, *to.mutable_file());
  to.set_to_disk(from.to_disk);
  to.set_failure(from.failure);
  to.set_socket(from.socket ? from.socket->number() : -1);
  to.set_worker_session(from.worker_session);
  to.set_since_ms(std::chrono::duration_cast<milliseconds>(from.since.time_since_epoch()).count());
  to.set_resume_timeout_ms(from.resume_timeout.count());
  to.set_last_seen(upgrade::to_ns(from.last_seen));
  to.set_last_attempt(from.last_attempt);
  to.set_over_tls(from.over_tls);
  to.set_wanted(from.wanted);
  to.set_at(from.at);
  to.set_sent_away(from.sent_away);
  if (from.credential) save(Client{.credential = *from.credential}, *to.mutable_client());
  to.set_asked(upgrade::to_ns(from.asked));
}

SuspendedSession session_of(const upgrade::SuspendedSession& from) {
  SuspendedSession to;
  to.number = from.number();
  to.header.ParseFromString(from.header());
  to.state = static_cast<SuspendedSession::State>(from.state());
  to.file = file_of(from.file());
  to.bytes = std::make_shared<std::atomic<uint64_t>>(to.file.bytes);
  to.to_disk = from.to_disk();
  to.failure = from.failure();
  if (from.socket() >= 0) to.socket = std::make_shared<const SuspendedFiles::Descriptor>(from.socket());
  to.worker_session = from.worker_session();
  to.since = std::chrono::system_clock::time_point(milliseconds(from.since_ms()));
  to.resume_timeout = milliseconds(from.resume_timeout_ms());
  to.last_seen = upgrade::steady(from.last_seen());
  to.last_attempt = from.last_attempt();
  to.over_tls = from.over_tls();
  to.wanted = from.wanted();
  to.at = from.at();
  to.sent_away = from.sent_away();
  if (from.has_client()) to.credential = restored(from.client()).credential;
  to.asked = upgrade::steady(from.asked());
  return to;
}

}  // namespace

void Suspensions::unpause() {
  paused_ = false;
  go_on();
}

std::string Suspensions::unfinished() const {
  constexpr const char* kWait = "; upgrade poold when that is done";
  for (const auto& [number, session] : sessions_) {
    const std::string name = "session " + std::to_string(number);
    if (session.state == State::storing && session.is_written) return name + " is being suspended" + kWait;
    if (session.state == State::restoring) return name + " is being resumed" + kWait;
  }
  return files_.busy() ? "files of suspended sessions are being read or removed; try again" : "";
}

void Suspensions::give_up_waiting() {
  for (auto& [number, session] : sessions_) {
    if (!session.client) continue;
    keep_waiting(*std::exchange(session.client, std::nullopt), "poold is being upgraded");
    session.last_seen = Clock::now();  // from now on it has the time to ask again
  }
}

void Suspensions::save(upgrade::Pool& to) const {
  to.set_suspended_folder(settings_.files.folder);
  for (const auto& [number, session] : sessions_) save_session(session, *to.add_suspended());
}

Result<void> Suspensions::check(const upgrade::SuspendedSession& from) {
  suspension::Header header;
  const bool readable = from.state() <= static_cast<uint32_t>(State::restored) &&
                        header.ParseFromString(from.header()) &&
                        header.protocol_version() == wire::kPeerProtocolVersion &&
                        from.file_version() == suspension::RecordFormat::kVersion;
  if (readable) return {};
  return Error{ErrorCode::malformed,
               "session " + std::to_string(from.number()) +
                   " is suspended to a file that only the running version reads; resume or end it first"};
}

void Suspensions::restore(const upgrade::Pool& from) {
  for (const upgrade::SuspendedSession& session : from.suspended()) {
    const auto checked = check(session);
    if (checked)
      take_over(session);
    else
      log::error("suspended_session_lost", {{"reason", checked.error().message}});
  }
  // Otherwise all files in the folder are those of sessions that are known.
  if (from.suspended_folder() != settings_.files.folder) start();
  look_again();
}

void Suspensions::take_over(const upgrade::SuspendedSession& from) {
  Session& session = sessions_[from.number()] = session_of(from);
  files_.count(session.file);
  if (session.state == State::storing && session.failure.empty()) await_worker(session);
}

}  // namespace gpupool::server
