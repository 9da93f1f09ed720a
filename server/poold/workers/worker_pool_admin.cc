// The part of WorkerPool for administration: its state, its sessions, and ending them.
#include "common/log/log.h"
#include "common/text/printable.h"
#include "server/poold/workers/worker_pool.h"

namespace gpupool::server {

WorkerPool::State WorkerPool::state() const {
  State state{.starting = workers_.count(Stage::starting),
              .idle = workers_.count(Stage::idle),
              .serving = workers_.count(Stage::serving),
              .waiting = static_cast<unsigned>(waiting_.size()),
              .sessions_started = next_session_ - 1,
              .start_failures = start_failures_};
  if (stopping_)
    state.not_ready_because = "poold is shutting down";
  else if (state.idle == 0 && backing_off_)
    state.not_ready_because = "no worker can start: " + last_failure_;
  else if (devices_.empty())
    state.not_ready_because = "the first worker is starting";
  else if (state.serving >= settings_.max_sessions)
    state.not_ready_because = "all session slots are in use";
  return state;
}

SessionView WorkerPool::view_of(const Worker& worker) const {
  const StateChanges::State& state = state_changes_.of(worker);
  return {.number = worker.session,
          .worker = worker.pid,
          .version = worker.version,
          .inherited = worker.inherited,
          .started = worker.started,
          .age = Clock::now() - worker.since,
          .client = worker.client,
          .page = **worker.page,
          .ending = !worker.ending.empty(),
          .state = state.state,
          .locked_by = state.by,
          .breaks = worker.breaks,
          .moving = migrations_.open(worker.session),
          .state_change = state.pending()};
}

void WorkerPool::for_each_session(const std::function<void(const SessionView&)>& visit) const {
  workers_.for_each_serving([&](const Worker& worker) { visit(view_of(worker)); });
}

Result<void> WorkerPool::end_session(uint64_t session, const std::string& reason, log::Level level) {
  if (suspensions_.end(session, reason)) return {};
  return end_serving(session, reason, level);
}

Result<void> WorkerPool::end_serving(uint64_t session, const std::string& reason, log::Level level) {
  for (const auto& [pid, worker] : workers_.all()) {
    if (worker->state != Stage::serving || worker->session != session) continue;
    if (!worker->ending.empty()) return {};
    worker->ending = reason.empty() ? "no reason given" : reason;
    log::write(level, level == log::Level::info ? "session_ends" : "session_killed",
               {{"session", session}, {"worker", pid}, {"reason", worker->ending}});
    const auto told = send_control<ControlKind::end_session>(worker->socket(), {}, worker->ending);
    kill_after(worker, told ? kEndGrace : std::chrono::milliseconds(0));
    return {};
  }
  return Error{ErrorCode::unavailable, "there is no session " + std::to_string(session)};
}

void WorkerPool::kill_after(const std::shared_ptr<Worker>& worker, std::chrono::milliseconds grace) {
  worker->deadline.expires_after(grace);
  worker->deadline.async_wait([this, worker](const asio::error_code& status) {
    const auto at = workers_.all().find(worker->pid);  // after reaping, the PID may be another process's
    if (!status && at != workers_.all().end() && at->second == worker) settings_.processes.kill(worker->pid);
  });
}

// A locked session executes no commands, so poold could not hear its client's answer.
Result<void> WorkerPool::request_migration(uint64_t session, const std::string& address,
                                           Migrations::Answered answered) {
  if (auto unlocked = check_unlocked(session, "migrate"); !unlocked) return unlocked;
  return migrations_.request(session, address, std::move(answered));
}

Result<void> WorkerPool::check_unlocked(uint64_t session, const char* what) const {
  const Worker* const worker = workers_.serving(session);
  if (!worker || state_changes_.of(*worker).state == wire::ProcessState::running) return {};
  return Error{ErrorCode::closed, "session " + std::to_string(session) + " is locked by " +
                                      printable(state_changes_.of(*worker).by) + ": it can " + what +
                                      " when it is unlocked"};
}

Result<void> WorkerPool::request_suspension(uint64_t session, const Suspensions::Order& order,
                                            Suspensions::Answered answered) {
  if (auto unlocked = check_unlocked(session, "be suspended"); !unlocked) return unlocked;
  return suspensions_.suspend(session, order, std::move(answered));
}

void WorkerPool::request_migrations(const std::string& tenant, const std::string& address,
                                    const std::function<void(const std::string&)>& failed) {
  workers_.for_each_serving([&](const Worker& worker) {
    if (worker.client.tenant != tenant || !worker.migrated.empty() ||
        !migrations_.open(worker.session).address.empty())
      return;
    const auto answered = [failed](const Result<Migrations::Outcome>& outcome) {
      if (outcome && !outcome->migrated) failed(outcome->reason);
    };
    if (auto asked = request_migration(worker.session, address, answered); !asked)
      failed(asked.error().message);
  });
  suspensions_.for_each([&](const SuspendedSession& session) {
    if (session.header.tenant() == tenant)
      failed("session " + std::to_string(session.number) + " is suspended: it can move when it is resumed");
  });
}

namespace {

// Returns the text for the tenant's clients.
WorkerPool::Reason for_tenant(const std::string& tenant, const std::string& why) {
  return [&](const Client& client) { return client.tenant == tenant ? std::optional(why) : std::nullopt; };
}

}  // namespace

void WorkerPool::end_sessions(const std::string& tenant, const std::string& reason) {
  end_sessions(for_tenant(tenant, reason), log::Level::info);
}

void WorkerPool::end_sessions(const Reason& reason, log::Level level) {
  std::vector<std::pair<uint64_t, std::string>> running;
  for (const auto& [pid, worker] : workers_.all()) {
    if (worker->state != Stage::serving) continue;
    if (auto why = reason(worker->client)) running.emplace_back(worker->session, *std::move(why));
  }
  for (const auto& [session, why] : running) (void)end_serving(session, why, level);
  suspensions_.end_all(reason);
  refuse_waiting(reason);
}

void WorkerPool::refuse_waiting(const std::string& tenant, const std::string& why) {
  refuse_waiting(for_tenant(tenant, why));
}

void WorkerPool::refuse_waiting(const Reason& reason) {
  for (auto& [client, why] : waiting_.take(reason))
    turn_away(std::move(client), {control::HelloReply::DENIED, std::move(why)});
}

}  // namespace gpupool::server
