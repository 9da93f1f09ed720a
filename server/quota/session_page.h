// Memory that poold shares with one worker: what the session has used, for monitoring, and its turns on the
// GPUs. poold trusts nothing in it that could harm another session. Zero-initialized.
#pragma once
#include <atomic>
#include <cstdint>

#include "server/quota/account.h"

namespace gpupool::quota {

struct SessionPage {
  // Written by the worker, relaxed. Values only grow, except those marked as current.
  struct Gpu {
    std::atomic<uint64_t> memory_used;     // bytes; current
    std::atomic<uint64_t> memory_peak;     // bytes
    std::atomic<uint64_t> memory_in_host;  // bytes of memory_used that are in host memory; current
    std::atomic<uint64_t> memory_moved;    // bytes that ever moved to host memory
    std::atomic<uint64_t> memory_movable;  // bytes of memory_used that are on the GPU and may move; current
    // Bytes of a checkpointed session in host memory, not part of memory_used; current.
    std::atomic<uint64_t> memory_checkpointed;
    std::atomic<uint64_t> gpu_nanoseconds;        // device time that was charged
    std::atomic<uint64_t> throttled_nanoseconds;  // time with work that waited for a turn
    std::atomic<uint64_t> launches;
  };
  Gpu gpus[kMostGpus];
  std::atomic<uint64_t> bytes_from_client;
  std::atomic<uint64_t> bytes_to_client;
  std::atomic<uint64_t> calls;
  std::atomic<uint64_t> errors;          // calls that ended in a CUDA error
  std::atomic<uint32_t> streams;         // current
  std::atomic<uint32_t> modules;         // current
  std::atomic<uint64_t> over_quota;      // requests refused because of a quota
  std::atomic<uint64_t> migrated_bytes;  // sent to the server to which the session migrates; current
  // Only with oversubscription; nanoseconds of the steady clock.
  std::atomic<int64_t> idle_since;   // 0: a command is running
  std::atomic<int64_t> stays_until;  // its memory has just come back; poold accepts at most 1 minute

  // Turns on each GPU (turn_word.h), written by poold, except that the worker ends them; whether the worker
  // waits for one; and a futex that poold increments and wakes after it has changed a turn.
  std::atomic<uint32_t> turns[kMostGpus];
  std::atomic<uint32_t> wants_turn[kMostGpus];
  std::atomic<uint32_t> bell;
};

// For counters that only one thread writes: avoids fetch_add's locked instruction.
inline void count(std::atomic<uint64_t>& counter, uint64_t more = 1) {
  counter.store(counter.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}

}  // namespace gpupool::quota
