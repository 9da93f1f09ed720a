#include "server/poold/workers/state_changes.h"

#include <algorithm>
#include <utility>

#include "common/log/log.h"
#include "protocol/driver/cuda_header.h"
#include "server/poold/workers/host_memory.h"

namespace gpupool::server {
namespace {

using wire::CheckpointAction;
using wire::ProcessState;

const char* name_of(CheckpointAction action) {
  constexpr const char* kNames[] = {"find", "lock", "checkpoint", "restore", "unlock"};
  return kNames[static_cast<uint32_t>(action)];
}

bool is_of_process(const Worker& worker, const Client& client, int64_t pid) {
  return worker.client.tenant == client.tenant && worker.client.lease == client.lease &&
         worker.client.pid == pid && worker.client.host == client.host &&
         worker.client.pid_space == client.pid_space;
}

}  // namespace

const char* StateChanges::State::pending() const {
  return question == 0 ? "" : name_of(action);
}

const StateChanges::State& StateChanges::of(const Worker& worker) const {
  static const State kRunning;
  const auto known = states_.find(worker.session);
  return known == states_.end() ? kRunning : known->second;
}

std::vector<wire::ProcessSession> StateChanges::sessions_of_process(const Client& client, int64_t pid) const {
  std::vector<wire::ProcessSession> sessions;
  workers_.for_each_serving([&](const Worker& worker) {
    if (!is_of_process(worker, client, pid) || sessions.size() == wire::kMostProcessSessions) return;
    sessions.push_back({.session = worker.session, .state = of(worker).state});
  });
  return sessions;
}

// Bytes of host memory that other sessions' checkpoints leave.
uint64_t StateChanges::room() const {
  uint64_t taken = 0, on_their_way = 0;
  for (const auto& [session, state] : states_) {
    taken += state.host_bytes;
    if (state.question != 0) on_their_way += state.host_bytes;
  }
  const uint64_t left = host_memory_left();
  return std::min(host_memory_ - std::min(taken, host_memory_), left - std::min(on_their_way, left));
}

bool StateChanges::send(Worker& worker, CheckpointAction action, uint64_t host_bytes) {
  const packet::ChangeState order{.question = next_question_, .host_bytes = host_bytes, .action = action};
  if (!send_control<ControlKind::change_state>(worker.socket(), order)) return false;
  State& state = states_[worker.session];
  state.question = next_question_++;
  state.action = action;
  if (host_bytes != 0) state.host_bytes = host_bytes;
  return true;
}

uint64_t StateChanges::change(const Client& client, const wire::CheckpointQuestion& question,
                              std::function<void(int32_t)> answered) {
  const auto refuse = [&](CUresult why) -> uint64_t { return answered(why), 0; };
  Worker* const found = workers_.serving(question.session);
  if (!found || !is_of_process(*found, client, question.pid)) return refuse(CUDA_ERROR_INVALID_VALUE);
  Worker& worker = *found;
  State& state = states_[worker.session];
  if (state.question != 0 || state.state != wire::state_before(question.action)) {
    return refuse(CUDA_ERROR_ILLEGAL_STATE);
  }
  uint64_t bytes = 0;
  if (question.action == CheckpointAction::checkpoint) {
    if (host_memory_ == 0) return refuse(CUDA_ERROR_NOT_SUPPORTED);
    for (size_t gpu = 0; gpu < std::min(devices_.size(), quota::kMostGpus); ++gpu) {
      bytes += std::min((*worker.page)->gpus[gpu].memory_used.load(), devices_[gpu].total_bytes());
    }
    if (const uint64_t room = this->room(); bytes > room) {
      log::warning(
          "no_host_memory_for_checkpoint",
          {{"session", worker.session}, {"tenant", worker.client.tenant}, {"bytes", bytes}, {"left", room}});
      return refuse(CUDA_ERROR_OUT_OF_MEMORY);
    }
  }
  // The worker does not drain its socket, or has just ended.
  if (!send(worker, question.action, bytes)) return refuse(CUDA_ERROR_INVALID_VALUE);
  if (question.action == CheckpointAction::lock) {
    state.by = client.program + " (process " + std::to_string(client.pid) + " on " + client.host + ")";
  }
  state.answered = std::move(answered);
  return state.question;
}

void StateChanges::cancel(uint64_t question, bool abandoned) {
  if (question == 0) return;
  for (auto& [session, state] : states_) {
    if (state.question != question) continue;
    if (abandoned) state.answered = nullptr;
    Worker* const worker = workers_.serving(session);
    if (state.action != CheckpointAction::lock || !worker) return;
    (void)workers_.check_sent(
        *worker, send_control<ControlKind::stop_locking>(worker->socket(), {.question = question}));
    return;
  }
}

bool StateChanges::changed(Worker& worker, const packet::StateChanged& answer) {
  State& checkpoint = states_[worker.session];
  if (answer.question != checkpoint.question || checkpoint.question == 0) {
    return workers_.end(worker, "unexpected state_changed message");
  }
  const CheckpointAction action = checkpoint.action;
  const bool done = answer.result == CUDA_SUCCESS;
  checkpoint.question = 0;
  if (done) checkpoint.state = wire::state_after(action);
  if (checkpoint.state == ProcessState::running) checkpoint.by.clear();
  if (checkpoint.state != ProcessState::checkpointed) checkpoint.host_bytes = 0;
  log::info("session_state", {{"session", worker.session},
                              {"tenant", worker.client.tenant},
                              {"action", name_of(action)},
                              {"result", answer.result}});
  const auto answered = std::exchange(checkpoint.answered, nullptr);
  if (answered)
    answered(answer.result);
  else if (done && action == CheckpointAction::lock)
    send(worker, CheckpointAction::unlock, 0);
  return true;
}

void StateChanges::worker_exited(const Worker& worker) {
  const auto known = states_.find(worker.session);
  if (known == states_.end()) return;
  if (auto answered = std::exchange(known->second.answered, nullptr)) answered(CUDA_ERROR_INVALID_VALUE);
}

void StateChanges::save(uint64_t session, upgrade::Session& to) const {
  const auto known = states_.find(session);
  if (known == states_.end()) return;
  upgrade::StateChange& change = *to.mutable_state_change();
  change.set_state(static_cast<uint32_t>(known->second.state));
  change.set_question(known->second.question);
  change.set_action(static_cast<uint32_t>(known->second.action));
  change.set_host_bytes(known->second.host_bytes);
  change.set_by(known->second.by);
}

void StateChanges::restore(uint64_t session, const upgrade::Session& from) {
  if (!from.has_state_change()) return;
  const upgrade::StateChange& change = from.state_change();
  State& state = states_[session];
  state.state = static_cast<ProcessState>(change.state());
  state.question = change.question();
  state.action = static_cast<CheckpointAction>(change.action());
  state.host_bytes = change.host_bytes();
  state.by = change.by();
}

}  // namespace gpupool::server
