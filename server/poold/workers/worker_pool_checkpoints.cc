// The part of WorkerPool that locks, checkpoints, restores and unlocks sessions for another client of their
// tenant (server/poold/workers/checkpoints.h). The client's report of its own host and of the PID is not
// verified: a false one reaches only sessions of its own tenant and lease.

#include <algorithm>
#include <utility>

#include "common/log/log.h"
#include "protocol/driver/cuda_header.h"
#include "server/poold/workers/worker_pool.h"

namespace gpupool::server {

using wire::CheckpointAction;
using wire::ProcessState;

const char* WorkerPool::name_of(CheckpointAction action) {
  constexpr const char* kNames[] = {"find", "lock", "checkpoint", "restore", "unlock"};
  return kNames[static_cast<uint32_t>(action)];
}

bool WorkerPool::is_of_process(const Worker& worker, const Client& client, int64_t pid) {
  return worker.state == Stage::serving && worker.client.tenant == client.tenant &&
         worker.client.lease == client.lease && worker.client.pid == pid &&
         worker.client.host == client.host && worker.client.pid_space == client.pid_space;
}

std::vector<wire::ProcessSession> WorkerPool::sessions_of_process(const Client& client, int64_t pid) const {
  std::vector<wire::ProcessSession> sessions;
  for (const auto& [worker_pid, worker] : workers_) {
    if (!is_of_process(*worker, client, pid) || sessions.size() == wire::kMostProcessSessions) continue;
    sessions.push_back({.session = worker->session, .state = worker->checkpoint.state});
  }
  return sessions;
}

// Bytes of host memory that other sessions' checkpoints leave.
uint64_t WorkerPool::checkpoint_room() const {
  uint64_t taken = 0, on_their_way = 0;
  for (const auto& [pid, worker] : workers_) {
    if (worker->state != Stage::serving) continue;
    taken += worker->checkpoint.host_bytes;
    if (worker->checkpoint.question != 0) on_their_way += worker->checkpoint.host_bytes;
  }
  const uint64_t left = host_memory_left();
  return std::min(
      settings_.host_memory_for_checkpoints - std::min(taken, settings_.host_memory_for_checkpoints),
      left - std::min(on_their_way, left));
}

bool WorkerPool::send_state_change(Worker& worker, CheckpointAction action, uint64_t host_bytes) {
  const packet::ChangeState order{.question = next_question_, .host_bytes = host_bytes, .action = action};
  if (!send_control<ControlKind::change_state>(worker.control.native_handle(), order)) return false;
  worker.checkpoint.question = next_question_++;
  worker.checkpoint.action = action;
  if (host_bytes != 0) worker.checkpoint.host_bytes = host_bytes;
  return true;
}

uint64_t WorkerPool::change_state(const Client& client, const wire::CheckpointQuestion& question,
                                  std::function<void(int32_t)> answered) {
  const auto refuse = [&](CUresult why) -> uint64_t { return answered(why), 0; };
  const auto found = std::find_if(workers_.begin(), workers_.end(), [&](const auto& entry) {
    return entry.second->session == question.session && is_of_process(*entry.second, client, question.pid);
  });
  if (found == workers_.end()) return refuse(CUDA_ERROR_INVALID_VALUE);
  Worker& worker = *found->second;
  if (worker.checkpoint.question != 0 || worker.checkpoint.state != wire::state_before(question.action)) {
    return refuse(CUDA_ERROR_ILLEGAL_STATE);
  }
  uint64_t bytes = 0;
  if (question.action == CheckpointAction::checkpoint) {
    if (settings_.host_memory_for_checkpoints == 0) return refuse(CUDA_ERROR_NOT_SUPPORTED);
    for (size_t gpu = 0; gpu < std::min(devices_.size(), quota::kMostGpus); ++gpu) {
      bytes += std::min((*worker.page)->gpus[gpu].memory_used.load(), devices_[gpu].total_bytes());
    }
    if (const uint64_t room = checkpoint_room(); bytes > room) {
      log::warning(
          "no_host_memory_for_checkpoint",
          {{"session", worker.session}, {"tenant", worker.client.tenant}, {"bytes", bytes}, {"left", room}});
      return refuse(CUDA_ERROR_OUT_OF_MEMORY);
    }
  }
  // The worker does not drain its socket, or has just ended.
  if (!send_state_change(worker, question.action, bytes)) return refuse(CUDA_ERROR_INVALID_VALUE);
  if (question.action == CheckpointAction::lock) {
    worker.checkpoint.by =
        client.program + " (process " + std::to_string(client.pid) + " on " + client.host + ")";
  }
  worker.checkpoint.answered = std::move(answered);
  return worker.checkpoint.question;
}

void WorkerPool::cancel_state_change(uint64_t question, bool abandoned) {
  for (const auto& [pid, worker] : workers_) {
    auto& checkpoint = worker->checkpoint;
    if (checkpoint.question != question || question == 0) continue;
    if (abandoned) checkpoint.answered = nullptr;
    if (checkpoint.action != CheckpointAction::lock) return;
    const auto sent =
        send_control<ControlKind::stop_locking>(worker->control.native_handle(), {.question = question});
    if (!sent && sent.error().code == ErrorCode::limit) end_worker(*worker, sent.error().message);
    return;
  }
}

bool WorkerPool::state_changed(Worker& worker, const packet::StateChanged& answer) {
  auto& checkpoint = worker.checkpoint;
  if (answer.question != checkpoint.question || checkpoint.question == 0) {
    return end_worker(worker, "unexpected state_changed message");
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
    send_state_change(worker, CheckpointAction::unlock, 0);
  return true;
}

}  // namespace gpupool::server
