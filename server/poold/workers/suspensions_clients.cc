// The part of Suspensions that concerns clients that return, and the workers that get their sessions.
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "common/text/printable.h"
#include "protocol/wire/migration.h"
#include "server/poold/workers/suspensions.h"
#include "server/sockets/untrusted_socket.h"

namespace gpupool::server {
namespace {

constexpr const char* kNotHere = "it could not go on here";

// Why a client has come back instead of going on.
std::string reason_of(const Client& client, const std::string& what) {
  const std::string& why = client.resume->failure;
  return "its client has come back: " + (why.empty() ? what : what + ": " + why);
}

}  // namespace

void Suspensions::keep_waiting(Client client, const std::string& why, const std::string& moved_to) {
  hooks_.refuse(std::move(client), {control::HelloReply::SUSPENDED, why, moved_to});
}

// Returns the session whose client this is, or null.
Suspensions::Session* Suspensions::find_client(const Client& client) {
  for (auto& [number, session] : sessions_) {
    if (session.header.session_id() != client.session_id) continue;
    const bool good = session.header.tenant() == client.tenant && session.header.lease() == client.lease &&
                      client.resume->proves(session.header.resume_key()) &&
                      client.resume->attempt > session.last_attempt;
    if (!good) return nullptr;
    // An attempt that somebody has recorded is worth nothing a second time.
    session.last_attempt = client.resume->attempt;
    return &session;
  }
  return nullptr;
}

void Suspensions::returns(Client client) {
  if (scanning_ || stopped_) return keep_waiting(std::move(client), "poold is starting or stopping");
  Session* const session = find_client(client);
  if (!session)
    return hooks_.refuse(std::move(client), {control::HelloReply::DENIED,
                                             "no suspended session of this client is here: it has ended"});
  session->last_seen = Clock::now();
  session->over_tls = client.transport == "tls";
  if (client.resume->link == wire::kForgetsLink) {
    keep_waiting(std::move(client), "the file is removed");
    return forget(*session);
  }
  if (session->state == State::storing)  // only a client that breaks the protocol is here already
    return keep_waiting(std::move(client), "the session is being suspended");
  leave_worker(*session, client);
  if (session->client) keep_waiting(*std::exchange(session->client, std::nullopt), "it has returned again");
  if (!session->at.empty() && !session->sent_away) return send_away(*session, std::move(client));
  if (!session->at.empty())
    not_restored(*session, reason_of(client, "it could not go on at " + std::exchange(session->at, "")));
  session->credential = client.credential;
  session->client = std::move(client);
  session->client_since = Clock::now();
  restore(*session);
  look_again();
}

void Suspensions::send_away(Session& session, Client client) {
  session.sent_away = true;
  keep_waiting(std::move(client), "the session goes on at another server", session.at);
}

// Takes the session from the worker that has it: from the one that has stored it, if the client's farewell
// was lost, or from a new one, where the client could not go on.
void Suspensions::leave_worker(Session& session, const Client& client) {
  constexpr const char* kWhy = "its client waits for the suspended session";
  if (session.state == State::stored) {
    become_suspended(session);
    return hooks_.end_session(session.number, "suspended");
  }
  if (session.state == State::suspended) return;
  if (session.state == State::restoring && session.socket) {
    session.came_back = reason_of(client, kNotHere);
    return hooks_.end_session(session.worker_session, kWhy);
  }
  const uint64_t left = std::exchange(session.worker_session, 0);
  session.state = State::suspended;
  if (left != 0) hooks_.end_session(left, kWhy);
  if (session.answered) not_restored(session, reason_of(client, kNotHere));
}

// The session goes on, here or elsewhere.
void Suspensions::forget(Session& session) {
  ++counts_.resumed;
  answer(session, "suspended_session_resumed",
         {.done = true, .bytes = session.file.bytes, .session = session.worker_session});
  drop(sessions_.find(session.number), "");
}

void Suspensions::restore(Session& session) {
  if (begins_nothing() || !session.wanted || !session.client || session.state != State::suspended ||
      keeps_(session))
    return;
  session.state = State::restoring;
  Client client = *std::exchange(session.client, std::nullopt);
  client.suspended = session.number;
  hooks_.assign(std::move(client));
}

// The session whose client has been given to restore(), if it has not returned since.
Suspensions::Session* Suspensions::find_assigned(const Client& client) {
  Session* const session = find(*client.suspended);
  const bool is_last = session && session->state == State::restoring &&
                       session->header.session_id() == client.session_id &&
                       session->last_attempt == client.resume->attempt;
  return is_last ? session : nullptr;
}

void Suspensions::not_assigned(Client client, const Refusal& refusal) {
  Session* const session = find_assigned(client);
  client.suspended.reset();
  if (!session) return keep_waiting(std::move(client), refusal.reason);
  session->state = State::suspended;
  session->last_seen = Clock::now();
  // It is still to be resumed, by the next program.
  if (paused_) return keep_waiting(std::move(client), "poold is being upgraded");
  session->client = std::move(client);
  session->client_since = session->last_seen;
  not_restored(*session, refusal.reason);
  look_again();
}

void Suspensions::begin_restoring(const Client& client, Worker& worker) {
  Session* const session = find_assigned(client);
  if (!session) return;  // the client has returned since: this worker gets no file, and gives up in time
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
  refuse_descriptors(ends[0]);
  session->worker_session = worker.session;
  session->came_back.clear();
  session->socket = std::make_shared<const SuspendedFiles::Descriptor>(ends[0]);
  const packet::Bulk bulk{.copy = wire::kAdoptSequence, .from_peer = 1, .transport = packet::kFromFile};
  const auto sent = send_control<ControlKind::bulk>(worker.socket(), bulk, "", ends[1]);
  ::close(ends[1]);  // nothing was sent to it
  if (!workers_.check_sent(worker, sent)) {
    let_go(*session);
    session->state = State::suspended;
    return not_restored(*session, "its new worker has ended");
  }
  files_.restore(session->file, session->header.session_id(), session->socket,
                 [this, number = session->number, at = worker.session](const Result<void>& result) {
                   restored(number, at, result);
                 });
}

void Suspensions::restored(uint64_t number, uint64_t worker_session, const Result<void>& result) {
  Session* const session = find(number);
  if (!session || session->state != State::restoring || session->worker_session != worker_session) return;
  let_go(*session);  // a worker that still waits for the rest gives up
  session->last_seen = Clock::now();
  const std::string came_back = std::exchange(session->came_back, "");
  if (result && came_back.empty()) {
    session->state = State::restored;
    return;
  }
  session->state = State::suspended;
  session->worker_session = 0;
  const bool has_reason = !result && (came_back.empty() || result.error().code == ErrorCode::refused);
  not_restored(*session, has_reason ? result.error().message : came_back);
}

void Suspensions::not_restored(Session& session, const std::string& why) {
  session.wanted = false;
  ++counts_.not_resumed;
  answer(session, "suspended_session_not_resumed", {.reason = printable_message(why)});
}

}  // namespace gpupool::server
