// The part of WorkerPool that gives clients to workers.
#include <sys/random.h>

#include <algorithm>
#include <utility>

#include "common/log/log.h"
#include "server/poold/workers/worker_pool.h"
#include "server/sockets/descriptor_closer.h"

namespace gpupool::server {
namespace {

constexpr size_t kMostHopeless = 64;  // waiting clients, while all slots are in use

// Takes a time that does not depend on the position of a difference.
bool same_secret(const std::string& a, const std::string& b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

// The worker holds the connection as well and may have set SO_LINGER, so closing it here could block.
void close_shared(int& descriptor) {
  close_without_blocking(std::exchange(descriptor, -1));
}

// For messages with a connection.
template <class Body>
bool add_connection(const Client& client, Body& body) {
  client.transport.copy(body.transport.data(), body.transport.size() - 1);
  if (client.peer && client.transport == "tls")
    std::copy(client.peer->channel_key.begin(), client.peer->channel_key.end(), body.tls_secret.begin());
  if (!client.tls) return true;
  const auto secret = client.tls->secret();
  if (secret) body.tls_secret = *secret;
  return secret.ok();
}

}  // namespace

void WorkerPool::assign(Client client) {
  if (stopping_) {
    turn_away(std::move(client), {control::HelloReply::BUSY, "poold is shutting down"});
    return;
  }
  if (const auto refusal = refuses_()) return turn_away(std::move(client), *refusal);
  // Without a slot it waits briefly: the client of one may have just been killed.
  if (auto why = no_slot_for(client.tenant, next_place(client.tenant));
      why && waiting_.size() >= kMostHopeless)
    return turn_away(std::move(client), {control::HelloReply::BUSY, *std::move(why)});
  for (const auto& [pid, worker] : workers_.all()) {
    if (worker->state != Stage::idle || !has_slot_for(client.tenant)) continue;
    if (hand_over(*worker, client)) {
      start_missing_workers();
      return;
    }
  }
  if (cannot_start()) {
    turn_away(std::move(client), {control::HelloReply::NO_DEVICE, "no worker can start: " + last_failure_});
    return;
  }
  waiting_.add(std::move(client));
  serve_waiting();
  start_missing_workers();
}

unsigned WorkerPool::most_sessions_of(const std::string& tenant) const {
  const Tenant* const found = tenants_.find(tenant);
  return found ? found->quota.most_sessions() : 0;
}

std::optional<std::string> WorkerPool::no_slot_for(const std::string& tenant,
                                                   const ClientQueue::Place& place) const {
  if (workers_.count(Stage::serving) + place.all > settings_.max_sessions + abandoned_.count())
    return "all " + std::to_string(settings_.max_sessions) + " session slots are in use; try again later";
  const unsigned most = most_sessions_of(tenant);
  const size_t running = sessions_of(tenant) - waiting_.count(tenant);
  if (most == 0 || running + place.of_tenant <= most + abandoned_.count(tenant)) return std::nullopt;
  return "your tenant has reached its limit of " + std::to_string(most) +
         " session(s); try again when one has ended";
}

bool WorkerPool::has_slot_for(const std::string& tenant) const {
  if (workers_.count(Stage::serving) >= settings_.max_sessions) return false;
  const unsigned most = most_sessions_of(tenant);
  return most == 0 || sessions_of(tenant) - waiting_.count(tenant) < most;
}

void WorkerPool::serve_waiting() {
  if (stopping_) return;
  const auto idle = [this] {
    const auto found = std::find_if(workers_.all().begin(), workers_.all().end(),
                                    [](const auto& entry) { return entry.second->state == Stage::idle; });
    return found == workers_.all().end() ? nullptr : found->second;
  };
  while (const auto worker = idle()) {
    auto next = waiting_.take_first([this](const Client& client) { return has_slot_for(client.tenant); });
    if (!next) break;
    if (const auto refusal = refuses_()) {
      turn_away(std::move(next->client), *refusal);
    } else if (!hand_over(*worker, next->client)) {
      waiting_.put_back(*std::move(next));
      break;
    }
  }
  free_slots_for_waiting();
}

void WorkerPool::give_up_waiting(Client client) {
  auto why = no_slot_for(client.tenant, next_place(client.tenant));
  if (!why)
    why = "no worker became ready within " + std::to_string(settings_.client_patience.count() / 1000) +
          " s; try again later";
  turn_away(std::move(client), {control::HelloReply::BUSY, *std::move(why)});
}

void WorkerPool::free_slots_for_waiting() {
  for (const std::string& tenant : waiting_.tenants()) {
    const unsigned most = most_sessions_of(tenant);
    if (const size_t all = sessions_of(tenant); most != 0 && all > most)
      abandoned_.free_slots(all - most, tenant);
  }
  if (const size_t all = workers_.count(Stage::serving) + waiting_.size(); all > settings_.max_sessions)
    abandoned_.free_slots(all - settings_.max_sessions);
  abandoned_.update();
}

void WorkerPool::refuse_unserved(std::vector<Client> clients, control::HelloReply::Status status,
                                 const std::string& why) {
  for (Client& client : clients) turn_away(std::move(client), {status, why});
}

void WorkerPool::turn_away(Client client, Refusal refusal) {
  if (client.suspended) return suspensions_.not_assigned(std::move(client), refusal);
  refuse_(std::move(client), std::move(refusal));
}

void WorkerPool::attach(Client client) {
  for (const auto& [pid, worker] : workers_.all()) {
    if (worker->state != Stage::serving) continue;
    if (client.peer ? worker->session != client.peer->session : worker->session_id != client.session_id)
      continue;
    if (!client.peer && !same_secret(worker->bulk_token, client.bulk_token)) break;
    // An encrypted session accepts no unencrypted connection of another server.
    if (client.peer && worker->client.transport == "tls" && client.transport != "tls") break;
    packet::Bulk bulk{.copy = client.peer ? client.peer->copy : 0,
                      .from_peer = client.peer.has_value(),
                      .link = worker->resume_timeout.count() != 0 ? client.bulk_link : 0};
    if (!add_connection(client, bulk)) break;
    if (!send_control<ControlKind::bulk>(worker->socket(), bulk, "", client.descriptor)) break;
    if (client.tls) client.tls->end();  // the client continues with the worker
    close_shared(client.descriptor);
    log::debug("bulk_connection", {{"session", worker->session}, {"client", client.address}});
    return;
  }
  refuse_(std::move(client),
          {control::HelloReply::DENIED, "cannot open a bulk connection: no such session, or wrong token"});
}

void WorkerPool::resume(Client client) {
  for (const auto& [pid, worker] : workers_.all()) {
    if (worker->state != Stage::serving || worker->session_id != client.session_id) continue;
    if (worker->client.tenant != client.tenant || worker->client.lease != client.lease) break;
    const auto& shown = *client.resume;
    if (shown.link >= worker->resume_attempts.size()) break;
    uint64_t& last_attempt = worker->resume_attempts[shown.link];
    // An attempt that somebody has recorded is worth nothing a second time.
    if (!shown.proves(worker->resume_key) || shown.attempt <= last_attempt) break;
    if (!worker->ending.empty())
      return refuse_(std::move(client),
                     {control::HelloReply::DENIED, "the server ended the session: " + worker->ending});
    packet::Resume resume{.received = shown.received, .link = shown.link};
    if (!add_connection(client, resume)) break;
    if (!send_control<ControlKind::resume>(worker->socket(), resume, "", client.descriptor)) break;
    last_attempt = shown.attempt;
    if (shown.link == 0) worker->client.process = client.process;
    if (client.tls) client.tls->end();  // the client continues with the worker
    close_shared(client.descriptor);
    log::info("session_resumes", {{"session", worker->session}, {"client", client.address}});
    return;
  }
  std::string why = "cannot resume the session: it has ended, or this is not its client";
  for (const EndedSession& ended : ended_sessions_) {
    if (ended.session_id == client.session_id && ended.tenant == client.tenant &&
        client.resume->proves(ended.resume_key))
      why = "the server ended the session: " + ended.reason;
  }
  refuse_(std::move(client), {control::HelloReply::DENIED, std::move(why)});
}

std::chrono::milliseconds WorkerPool::resume_timeout_of(const Tenant* tenant) const {
  if (!tenant || tenant->quota.resume_timeout_seconds == quota::kDefaultTimeout)
    return settings_.resume_timeout;
  return std::chrono::seconds(tenant->quota.resume_timeout_seconds);
}

bool WorkerPool::connection_broken(Worker& worker, const packet::ConnectionBroken& message) {
  if (message.link >= Breaks::kLinks) return workers_.end(worker, "invalid control message");
  // Reported again if the client's side also closes a connection by which it wanted to resume.
  if (worker.breaks.since[message.link] == Clock::time_point{}) {
    worker.breaks.since[message.link] = Clock::now();
    tell_break(worker, {.link = message.link});
  }
  if (message.link != 0 || message.closed == 0) return true;
  worker.breaks.abandoned = true;
  serve_waiting();
  return true;
}

bool WorkerPool::connection_resumed(Worker& worker, const packet::ConnectionResumed& message) {
  if (message.link >= Breaks::kLinks) return workers_.end(worker, "invalid control message");
  Breaks& breaks = worker.breaks;
  const auto since = std::exchange(breaks.since[message.link], {});
  if (since == Clock::time_point{}) return workers_.end(worker, "resumed a connection that was not broken");
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - since);
  ++breaks.resumed;
  breaks.waited += waited;
  breaks.resent_bytes += message.resent;
  tell_break(worker,
             {.link = message.link, .resumed = true, .waited = waited, .resent_bytes = message.resent});
  if (message.link != 0) return true;
  breaks.abandoned = false;
  breaks.wanted_by.clear();
  serve_waiting();
  return true;
}

void WorkerPool::tell_break(Worker& worker, const BreakEvent& event) {
  if (!worker.breaks.records.take()) return;
  for (const auto& tell : on_break_) tell(view_of(worker), event);
}

void WorkerPool::remember_reason(const Worker& worker, const std::string& reason) {
  constexpr size_t kMostRemembered = 64;
  if (ended_sessions_.size() == kMostRemembered) ended_sessions_.pop_front();
  ended_sessions_.push_back({worker.session_id, worker.client.tenant, worker.resume_key, reason});
}

bool WorkerPool::hand_over(Worker& worker, Client& client) {
  packet::Session session{.number = next_session_,
                          .server_id = server_id_,
                          .largest_image = images_.largest_image(),
                          .dead_peer_timeout_ms = settings_.dead_peer_timeout.count(),
                          .oversubscribes = settings_.host_memory_for_idle != 0};
  const Tenant* const tenant = tenants_.find(client.tenant);
  session.resume_timeout_ms = resume_timeout_of(tenant).count();
  if (!client.lease.empty() && (!tenant || tenant->gpus.empty())) {
    turn_away(std::move(client), {control::HelloReply::DENIED, "the lease has ended"});
    return true;
  }
  if (tenant && tenant->leased) {
    session.gpu_count = static_cast<uint32_t>(
        std::copy(tenant->gpus.begin(), tenant->gpus.end(), session.gpus.begin()) - session.gpus.begin());
  }
  if (::getrandom(session.id.data(), session.id.size(), 0) < 0 ||
      ::getrandom(session.resume_key.data(), session.resume_key.size(), 0) < 0 ||
      ::getrandom(session.bulk_token.data(), session.bulk_token.size(), 0) < 0) {
    return false;
  }
  if (!add_connection(client, session)) {
    turn_away(std::move(client),
              {control::HelloReply::BUSY, "cannot hand over the TLS connection; try again"});
    return true;
  }
  auto account_slot = accounts_.take(client.tenant);
  if (!account_slot) {
    turn_away(std::move(client), {control::HelloReply::BUSY, account_slot.error().message});
    return true;
  }
  partitions_.update();  // the configuration may have changed
  const auto groups = partitions_.take(next_session_, client.tenant);
  if (!groups) {
    turn_away(std::move(client), {control::HelloReply::BUSY, groups.error().message});
    return true;
  }
  worker.account_slot = std::move(*account_slot);
  begin_session(worker, client, session);
  const std::string_view group_bytes(reinterpret_cast<const char*>(groups->data()),
                                     groups->size() * sizeof(quota::Groups));
  if (const auto sent = send_session(worker, client, session, group_bytes); !sent) {
    // The worker has just ended; reap() reports it.
    worker.failure = "it exited while idle: " + sent.error().message;
    for (const auto& tell : session_ended_)
      tell(view_of(worker), worker.failure + "; the client gets another worker", false);
    worker.account_slot.reset();
    partitions_.release(worker.session);
    worker.state = Stage::starting;
    settings_.processes.kill(worker.pid);
    return false;
  }
  const bool has_partition = !partitions_.partitions().groups_of(client.tenant).empty();
  turns_.add(worker.session, client.tenant, has_partition ? client.tenant : "", worker.page);
  if (client.suspended) suspensions_.begin_restoring(client, worker);
  if (client.tls) client.tls->end();  // the client continues with the worker
  close_shared(client.descriptor);
  return true;
}

// Notifies before the client is served, so that the audit has a record of every session.
void WorkerPool::begin_session(Worker& worker, const Client& client, const packet::Session& session) {
  worker.state = Stage::serving;
  worker.since = Clock::now();
  worker.started = std::chrono::system_clock::now();
  worker.session = next_session_++;
  worker.output->set_session(worker.session);
  worker.session_id.assign(session.id.data(), session.id.size());
  worker.bulk_token.assign(session.bulk_token.data(), session.bulk_token.size());
  worker.resume_key.assign(session.resume_key.data(), session.resume_key.size());
  worker.resume_attempts = {};
  worker.resume_timeout = std::chrono::milliseconds(session.resume_timeout_ms);
  worker.client = client;
  worker.client.descriptor = -1;
  worker.client.hello.clear();
  worker.client.tls.reset();
  for (const auto& tell : session_started_) tell(view_of(worker));
}

Result<void> WorkerPool::send_session(Worker& worker, const Client& client, const packet::Session& session,
                                      std::string_view groups) {
  const int socket = worker.socket();
  auto sent = send_control<ControlKind::account>(socket, {.slot = worker.account_slot->slot()}, groups,
                                                 worker.account_slot->descriptor());
  const int code = code_.file_of(client.tenant);
  if (sent && code >= 0) sent = send_control<ControlKind::code>(socket, {}, "", code);
  const int folder = code_.folder_of(client.tenant);
  if (sent && folder >= 0) sent = send_control<ControlKind::cache_folder>(socket, {}, "", folder);
  if (sent) sent = send_control<ControlKind::session>(socket, session, client.hello, client.descriptor);
  return sent;
}

}  // namespace gpupool::server
