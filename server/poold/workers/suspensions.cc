#include "server/poold/workers/suspensions.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/log/log.h"
#include "common/text/printable.h"
#include "server/poold/workers/time_since.h"
#include "server/sockets/untrusted_socket.h"

namespace gpupool::server {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kLookAtSuspended{1};
// How long a client waits for an answer before it asks again, so that each side learns whether the other one
// is still there.
constexpr std::chrono::seconds kClientAnswerTime{10};
// For a client on its way to another server, or to this one with a file of another.
constexpr std::chrono::minutes kTravelTime{10};

int64_t suspended_at_ms() {
  return std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

suspension::Header header_of(const Worker& worker) {
  suspension::Header header;
  header.set_protocol_version(wire::kPeerProtocolVersion);
  header.set_number(worker.session);
  header.set_session_id(worker.session_id);
  header.set_resume_key(worker.resume_key);
  header.set_tenant(worker.client.tenant);
  header.set_lease(worker.client.lease);
  header.set_program(worker.client.program);
  header.set_host(worker.client.host);
  header.set_pid(worker.client.pid);
  header.set_address(worker.client.address);
  header.set_started_ms(std::chrono::duration_cast<milliseconds>(worker.started.time_since_epoch()).count());
  header.set_suspended_ms(suspended_at_ms());
  return header;
}

std::string session_text(uint64_t session) {
  return "session " + std::to_string(session);
}

// The client shows its token there. It checks this itself, too (client/session/session_suspension.cc).
Result<void> check_destination(const SuspendedSession& session, const std::string& at) {
  if (at.empty() || at.starts_with("tls://")) return {};
  if (session.over_tls)
    return Error{ErrorCode::closed, session_text(session.number) +
                                        " is encrypted: it goes on at tls:// addresses only, because its "
                                        "client sends its token there"};
  if (!at.starts_with("tcp://"))
    return Error{ErrorCode::closed, "a session goes on at tls:// and tcp:// addresses only"};
  return {};
}

}  // namespace

Suspensions::Suspensions(asio::io_context& context, Workers& workers, Migrations& migrations,
                         Settings settings, Hooks hooks)
    : context_(context),
      workers_(workers),
      migrations_(migrations),
      settings_(std::move(settings)),
      hooks_(std::move(hooks)),
      files_(context, settings_.files),
      timer_(context) {}

void Suspensions::start() {
  if (settings_.files.folder.empty()) return;
  scanning_ = true;
  files_.scan([this](std::vector<SuspendedFiles::Found> found) {
    scanning_ = false;
    for (auto& one : found) {
      if (has_session(one.header.session_id()))
        files_.uncount(one.file);
      else
        add_found(std::move(one), false, nullptr);
    }
    go_on();
  });
}

void Suspensions::stop() {
  stopped_ = true;
  timer_.cancel();
  for (auto& [number, session] : sessions_) {
    if (session.client) keep_waiting(*std::exchange(session.client, std::nullopt), "poold is shutting down");
    if (session.socket) ::shutdown(session.socket->number(), SHUT_RDWR);
  }
}

Result<void> Suspensions::check(const Order& order) const {
  if (begins_nothing())
    return Error{ErrorCode::refused, paused_
                                         ? "poold is being upgraded; try again"
                                         : "poold is reading its folder of suspended sessions; try again"};
  if (order.to_disk && settings_.files.folder.empty())
    return Error{ErrorCode::closed, "this poold suspends no sessions to disk; see --suspended-folder"};
  if (!order.to_disk && settings_.files.memory_bytes == 0)
    return Error{ErrorCode::closed,
                 "this poold suspends no sessions to host memory; see --host-memory-for-suspended-mib"};
  if (order.encrypts && !settings_.files.secret)
    return Error{ErrorCode::closed, "this poold has no key for encrypted files; see --suspended-key"};
  return {};
}

Suspensions::Session* Suspensions::find(uint64_t number) {
  return const_cast<Session*>(std::as_const(*this).find(number));
}

const Suspensions::Session* Suspensions::find(uint64_t number) const {
  const auto found = sessions_.find(number);
  return found == sessions_.end() ? nullptr : &found->second;
}

Result<void> Suspensions::suspend(uint64_t number, const Order& order, Answered answered) {
  if (const Session* const known = find(number); known && known->has_left())
    return Error{ErrorCode::refused, session_text(number) + " is suspended already"};
  if (auto checked = check(order); !checked) return checked;
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return Error{ErrorCode::closed, "no socket can be made"};
  refuse_descriptors(ends[0]);
  const auto own = std::make_shared<const SuspendedFiles::Descriptor>(ends[0]);
  const auto asked = migrations_.request_suspension(number, ends[1], answer_of(number));
  ::close(ends[1]);  // nothing was sent to it
  if (!asked) return asked;
  const Worker& worker = *workers_.serving(number);
  Session& session = sessions_[number];
  session.number = number;
  session.header = header_of(worker);
  session.bytes = std::make_shared<std::atomic<uint64_t>>(0);
  session.to_disk = order.to_disk;
  session.socket = own;
  session.since = std::chrono::system_clock::now();
  session.resume_timeout = worker.resume_timeout;
  session.credential = worker.client.credential;
  session.over_tls = worker.client.transport == "tls";
  session.asked = session.last_seen = Clock::now();
  session.answered = std::move(answered);
  if (order.encrypts || (order.to_disk && settings_.files.encrypts_disk()))
    session.file.secret = settings_.files.secret;
  await_worker(session);
  return {};
}

// The worker sends when the client has stopped its program, which may be in a long call.
void Suspensions::await_worker(Session& session) {
  asio::error_code status;
  // The socket is the session's.
  session.arrival.reset(new asio::posix::stream_descriptor(context_), [](auto* one) {
    if (one->is_open()) one->release();
    delete one;
  });
  session.arrival->assign(session.socket->number(), status);
  if (status) return store(session);
  session.arrival->async_wait(
      asio::posix::stream_descriptor::wait_read,
      [this, number = session.number, bytes = session.bytes](const asio::error_code& failed) {
        Session* const its = find(number);
        if (failed || stopped_ || begins_nothing() || !its || its->bytes != bytes || !its->arrival) return;
        store(*its);
      });
}

void Suspensions::store(Session& session) {
  session.arrival.reset();
  if (session.to_disk && settings_.files.folder.empty())
    return stored(session.number, Error{ErrorCode::closed, "--suspended-folder was removed"});
  session.is_written = true;
  files_.store(session.header, session.to_disk, session.file.secret, session.socket, session.bytes,
               [this, number = session.number, bytes = session.bytes](Result<SuspendedFiles::File> file) {
                 Session* const its = find(number);
                 if (its && its->socket && its->bytes == bytes) return stored(number, std::move(file));
                 if (file) files_.remove(*file);  // the client has gone on, or has ended
               });
}

// Begins the storing and resuming that was put off by pause(), or while the folder was read.
void Suspensions::go_on() {
  if (begins_nothing() || stopped_) return;
  for (auto& [number, session] : sessions_) {
    if (session.arrival) await_worker(session);
    restore(session);
  }
}

// Sets the state before it answers the worker, because the client may be back as soon as the worker knows.
void Suspensions::stored(uint64_t number, Result<SuspendedFiles::File> file) {
  Session& session = *find(number);
  session.is_written = false;
  if (file) {
    session.file = *file;
    session.state = State::stored;
    suspension::answer_worker(session.socket->number(), {});
  } else {
    session.failure = file.error().message;
    suspension::answer_worker(session.socket->number(), file.error());
  }
}

void Suspensions::client_answered(uint64_t number, const Result<Migrations::Outcome>& outcome) {
  Session* const session = find(number);
  if (!session || session->has_left()) return;  // its client has returned before
  const bool has_left = outcome ? outcome->migrated : true;
  if (has_left && session->state == State::stored) return become_suspended(*session);
  // If the file has failed, the client repeats the reason that the worker got. If it gives none, take the
  // file's.
  std::string why = outcome ? outcome->reason : outcome.error().message;
  if (why.empty()) why = session->failure;
  ++counts_.not_suspended;
  answer(*session, "session_not_suspended", {.reason = printable_message(why)});
  drop(sessions_.find(number), "");
}

void Suspensions::become_suspended(Session& session) {
  session.state = State::suspended;
  let_go(session);
  session.since = std::chrono::system_clock::now();
  session.last_seen = Clock::now();
  ++counts_.suspended;
  answer(session, "session_suspended",
         {.done = true, .path = session.file.path, .bytes = session.file.bytes});
  look_again();
}

Result<void> Suspensions::resume(uint64_t number, const std::string& at, Answered answered) {
  Session* const session = find(number);
  if (!session || !session->has_left())
    return Error{ErrorCode::unavailable, session_text(number) + " is not suspended"};
  if (session->wanted || session->answered || session->state != State::suspended)
    return Error{ErrorCode::refused, session_text(number) + " is being resumed already"};
  if (keeps_(*session))
    return Error{ErrorCode::closed, session_text(number) +
                                        " belongs to a lease that the scheduler has suspended; "
                                        "resume the lease (pool-admin --scheduler)"};
  if (auto checked = check_destination(*session, at); !checked) return checked;
  session->wanted = at.empty();
  session->at = at;
  session->sent_away = false;
  session->asked = Clock::now();
  session->answered = std::move(answered);
  if (!at.empty() && session->client)
    send_away(*session, *std::exchange(session->client, std::nullopt));
  else
    restore(*session);
  return {};
}

void Suspensions::resume_file(const std::string& path, Answered answered) {
  files_.look(path, [this, answered = std::move(answered)](Result<SuspendedFiles::Found> found) mutable {
    if (!found) return answered(Error{ErrorCode::closed, found.error().message});
    for (const auto& [number, session] : sessions_) {
      if (session.header.session_id() != found->header.session_id()) continue;
      return answered(Error{ErrorCode::refused, "the file's session is " + session_text(number) +
                                                    " here; resume it by that number"});
    }
    add_found(std::move(*found), true, std::move(answered));
  });
}

bool Suspensions::has_session(const std::string& session_id) const {
  return std::any_of(sessions_.begin(), sessions_.end(),
                     [&](const auto& one) { return one.second.header.session_id() == session_id; });
}

void Suspensions::add_found(SuspendedFiles::Found found, bool wanted, Answered answered) {
  const uint64_t number = hooks_.new_number();
  Session& session = sessions_[number];
  session.number = number;
  session.header = std::move(found.header);
  session.file = std::move(found.file);
  session.bytes = std::make_shared<std::atomic<uint64_t>>(session.file.bytes);
  session.to_disk = true;
  session.state = State::suspended;
  session.since = std::chrono::system_clock::time_point(milliseconds(session.header.suspended_ms()));
  session.resume_timeout = settings_.resume_timeout;
  session.asked = session.last_seen = Clock::now();
  session.wanted = wanted;
  session.answered = std::move(answered);
  log::info("suspended_session_found", {{"session", number},
                                        {"was", session.header.number()},
                                        {"tenant", session.header.tenant()},
                                        {"file", session.file.path}});
  look_again();
}

bool Suspensions::end(uint64_t number, const std::string& reason) {
  const auto found = sessions_.find(number);
  if (found == sessions_.end() || !found->second.has_left()) return false;
  drop(found, reason);
  return true;
}

void Suspensions::end_all(const std::function<std::optional<std::string>(const Client&)>& reason) {
  for (auto next = sessions_.begin(); next != sessions_.end();) {
    const auto at = next++;
    const Session& session = at->second;
    if (!session.has_left()) continue;  // its worker still runs, and is ended as such
    if (!session.credential) continue;  // found in a file: checked when the client comes and shows it
    Client client;
    client.tenant = session.header.tenant();
    client.lease = session.header.lease();
    client.credential = *session.credential;
    if (const auto why = reason(client)) drop(at, *why);
  }
}

void Suspensions::session_ended(const Worker& worker) {
  for (auto& [number, session] : sessions_) {
    // In State::restoring, restored() handles the worker's end and has the reason.
    if (session.worker_session != worker.session || session.state != State::restored) continue;
    session.state = State::suspended;
    session.worker_session = 0;
    session.last_seen = Clock::now();
  }
}

size_t Suspensions::count(const std::string& tenant) const {
  return static_cast<size_t>(std::count_if(sessions_.begin(), sessions_.end(), [&](const auto& one) {
    return one.second.has_left() && one.second.header.tenant() == tenant;
  }));
}

void Suspensions::for_each(const std::function<void(const Session&)>& visit) const {
  for (const auto& [number, session] : sessions_) visit(session);
}

void Suspensions::answer(Session& session, std::string_view event, Outcome outcome) {
  outcome.time = time_since(session.asked);
  tell(event, session, outcome);
  if (const auto answered = std::exchange(session.answered, nullptr)) answered(outcome);
}

void Suspensions::tell(std::string_view event, const Session& session, const Outcome& outcome) {
  for (const auto& told : told_) told(event, session, outcome);
}

// `reason`: why a session that was suspended is over; empty: it goes on.
void Suspensions::drop(Sessions::iterator at, const std::string& reason) {
  auto node = sessions_.extract(at);
  Session& session = node.mapped();
  let_go(session);
  if (session.file.owned ? session.file.memory || !session.file.path.empty() : reason.empty())
    files_.remove(session.file);
  if (session.client) {
    Refusal refusal{control::HelloReply::DENIED, "the server ended the session: " + reason};
    if (reason.empty()) refusal = {control::HelloReply::SUSPENDED, "the session has gone on"};
    hooks_.refuse(*std::exchange(session.client, std::nullopt), std::move(refusal));
  }
  if (reason.empty()) return;
  if (session.worker_session != 0) hooks_.end_session(session.worker_session, reason);
  ++counts_.dropped;
  tell("suspended_session_dropped", session, {.reason = reason});
  if (session.answered) session.answered(Error{ErrorCode::closed, "the session is over: " + reason});
}

// Ends the thread that uses the socket.
void Suspensions::let_go(Session& session) {
  if (!session.socket) return;
  session.arrival.reset();
  ::shutdown(session.socket->number(), SHUT_RDWR);
  files_.let_go(std::exchange(session.socket, nullptr));
}

void Suspensions::look_again() {
  if (looking_ || stopped_ || sessions_.empty()) return;
  looking_ = true;
  timer_.expires_after(kLookAtSuspended);
  timer_.async_wait([this](const asio::error_code& status) {
    looking_ = false;
    if (status || stopped_) return;
    for (auto next = sessions_.begin(); next != sessions_.end();) {
      const auto at = next++;
      Session& session = at->second;
      if (session.client && time_since(session.client_since) >= kClientAnswerTime) {
        keep_waiting(*std::exchange(session.client, std::nullopt), "the session is suspended");
        session.last_seen = Clock::now();  // from now on it has the time to ask again
      }
      const bool travels = !session.at.empty() || !session.file.owned;
      const auto longest = session.resume_timeout + (travels ? kTravelTime : milliseconds(0));
      if (session.client || time_since(session.last_seen) < longest) continue;
      if (session.state == State::suspended)
        drop(at, "its client did not return");
      else if (session.state == State::restored)
        forget(session);
    }
    look_again();
  });
}

}  // namespace gpupool::server
