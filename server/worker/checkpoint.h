// The session is locked, checkpointed, restored and unlocked when poold says so (another program of its tenant wants it).
//
// Locked, the executor takes no commands and stays in here, between two of them, with nothing of the session on the device; the background
// thread's signs of life go on. Checkpointed, its device memory is in host memory as well. The lock has to wait for what the device
// has: commands are held back meanwhile, but for those that streams wait for. begin(), end() and what poold says: any thread; the rest is the
// executor's.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>

#include "protocol/cuda/cuda_header.h"
#include "server/handover.h"

namespace gpupool::worker {

class Executor;

class Checkpoint {
 public:
  explicit Checkpoint(Executor& session) : session_(session) {}
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  void begin();
  // No message of poold's is handled any more when this returns.
  void end();
  // False: the session is over.
  bool before_command(uint16_t id) { return !wanted_.load(std::memory_order_acquire) || hold(id); }
  // No command is there. How long the executor may sleep at most.
  std::optional<std::chrono::microseconds> before_sleep();

 private:
  struct Question {
    uint64_t number;
    wire::CheckpointAction action;
    uint64_t host_bytes;
  };

  bool hold(uint16_t id);
  void stay();
  CUresult change(const Question& question);
  CUresult check_out(uint64_t host_bytes);
  // With the mutex held.
  void answer(CUresult result);

  Executor& session_;
  std::atomic<bool> wanted_{false};  // to be locked

  std::mutex mutex_;  // what follows
  std::condition_variable asked_;
  std::optional<Question> question_;  // not answered yet
};

}  // namespace gpupool::worker
