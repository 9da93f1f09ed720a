// Locks, checkpoints, restores and unlocks sessions for another client of their tenant (checkpoints.h), and
// keeps the state of each. The client's report of its own host and of the PID is not verified: a false one
// reaches only sessions of its own tenant and lease. poold's thread.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "protocol/control/hello.pb.h"
#include "server/handover/handover.h"
#include "server/poold/upgrade/state.pb.h"
#include "server/poold/workers/client.h"
#include "server/poold/workers/workers.h"

namespace gpupool::server {

class StateChanges {
 public:
  struct State {
    wire::ProcessState state = wire::ProcessState::running;
    uint64_t question = 0;  // number of the open question, 0: none; `action` and `answered` belong to it
    wire::CheckpointAction action{};
    std::function<void(int32_t)> answered;  // null: no client waits
    uint64_t host_bytes = 0;                // limit of host memory for the session's device memory
    std::string by;                         // program that has locked it or is locking it

    // Name of the pending state change ("lock", ...); empty: none.
    const char* pending() const;
  };

  // `devices` must outlive this object. `host_memory`: limit for all checkpoints in bytes; 0: none.
  StateChanges(Workers& workers, const std::vector<control::Device>& devices, uint64_t host_memory)
      : workers_(workers), devices_(devices), host_memory_(host_memory) {}
  StateChanges(const StateChanges&) = delete;
  StateChanges& operator=(const StateChanges&) = delete;

  // Sessions of the process `pid` in the client's own host and PID namespace, tenant and lease.
  std::vector<wire::ProcessSession> sessions_of_process(const Client& client, int64_t pid) const;
  // Locks, checkpoints, restores or unlocks one of these sessions. Calls `answered` once with a CUresult,
  // possibly before returning. Returns a number for cancel(); 0: already answered.
  uint64_t change(const Client& client, const wire::CheckpointQuestion& question,
                  std::function<void(int32_t)> answered);
  // Cancels a pending lock; other actions go on. With `abandoned`, `answered` is not called, and a session
  // that gets locked all the same is unlocked again.
  void cancel(uint64_t question, bool abandoned);
  // Takes a worker's answer. Returns false if the worker was ended because it had no question.
  bool changed(Worker& worker, const packet::StateChanged& answer);
  // Answers the open question of a worker that has exited.
  void worker_exited(const Worker& worker);
  void session_ended(const Worker& worker) { states_.erase(worker.session); }
  // For this process's next program (server/poold/upgrade). Restored questions have no client that waits.
  void save(upgrade::Pool& to) const { to.set_next_state_change(next_question_); }
  void save(uint64_t session, upgrade::Session& to) const;
  void restore(const upgrade::Pool& from) { next_question_ = from.next_state_change(); }
  void restore(uint64_t session, const upgrade::Session& from);
  // Valid until session_ended().
  const State& of(const Worker& worker) const;

 private:
  bool send(Worker& worker, wire::CheckpointAction action, uint64_t host_bytes);
  uint64_t room() const;

  Workers& workers_;
  const std::vector<control::Device>& devices_;
  const uint64_t host_memory_;
  std::map<uint64_t, State> states_;  // by session; absent: running, and no question
  uint64_t next_question_ = 1;
};

}  // namespace gpupool::server
