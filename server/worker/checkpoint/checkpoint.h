// Locks, checkpoints, restores and unlocks the session at poold's request, which acts for another program of
// the same tenant (cuCheckpointProcess...).
//
// While locked, the executor stays in here, between two commands, and the session has no work on the device;
// the background thread's signs of life continue. While checkpointed, the session's device memory is in host
// memory. Locking waits for running device work to end; meanwhile commands are held back, except those that
// the work waits for. begin(), end() and the handlers of poold's messages: any thread. The rest: executor's
// thread.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>

#include "protocol/driver/cuda_header.h"
#include "server/handover/handover.h"

namespace gpupool::worker {

class Session;

class Checkpoint {
 public:
  explicit Checkpoint(Session& session) : session_(session) {}
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  void begin();
  // No handler of poold's messages runs any more when this returns.
  void end();
  // Call before each command. Blocks while the session is being locked or is locked. Returns false if the
  // session is over.
  bool before_command(uint16_t id) {
    return !wanted_.load(std::memory_order_acquire) || wait_until_lockable(id);
  }
  // Call when no command is available. Returns the longest time that the executor may sleep, if limited.
  std::optional<std::chrono::microseconds> before_sleep();

 private:
  struct Question {
    uint64_t number;
    wire::CheckpointAction action;
    uint64_t host_bytes;
  };

  bool wait_until_lockable(uint16_t id);
  void remain_locked();
  CUresult change(const Question& question);
  CUresult take_checkpoint(uint64_t host_bytes);
  // Requires mutex_.
  void answer(CUresult result);

  Session& session_;
  std::atomic<bool> wanted_{false};  // poold has asked to lock the session

  std::mutex mutex_;  // guards the rest
  std::condition_variable asked_;
  std::optional<Question> question_;  // unanswered
};

}  // namespace gpupool::worker
