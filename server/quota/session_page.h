// The memory that poold shares with one worker: what the session has used so far, for monitoring, and the turns that it takes
// on the GPUs. poold believes nothing in here that another session could suffer from.
#pragma once
#include <atomic>
#include <cstdint>

#include "server/quota/account.h"

namespace gpupool::quota {

struct SessionPage {
  // The worker's; they only grow, except where said. Relaxed.
  struct Gpu {
    std::atomic<uint64_t> memory_used;       // bytes; now
    std::atomic<uint64_t> memory_peak;       // bytes
    std::atomic<uint64_t> memory_in_host;    // bytes of memory_used that have been moved to host memory; now
    std::atomic<uint64_t> memory_moved;      // bytes, all that ever went to host memory
    std::atomic<uint64_t> memory_movable;    // bytes of memory_used that are on the GPU and could be; now
    std::atomic<uint64_t> memory_checkpointed;  // bytes in host memory that are not in memory_used, because the session is checkpointed
    std::atomic<uint64_t> gpu_nanoseconds;   // device time that was charged
    std::atomic<uint64_t> throttled_nanoseconds;  // work was there and had to wait for its turn
    std::atomic<uint64_t> launches;
  };
  Gpu gpus[kMostGpus];
  std::atomic<uint64_t> bytes_from_client;
  std::atomic<uint64_t> bytes_to_client;
  std::atomic<uint64_t> calls;
  std::atomic<uint64_t> errors;  // calls that ended in a CUDA error
  std::atomic<uint32_t> streams;  // now
  std::atomic<uint32_t> modules;  // now
  std::atomic<uint64_t> over_quota;  // requests refused for a quota
  // Only where memory may be moved; nanoseconds of the steady clock.
  std::atomic<int64_t> idle_since;  // 0: a command is at work
  std::atomic<int64_t> stays_until;  // its memory has just come back; poold does not believe more than a minute of it

  // The turns on each GPU (turn_word.h), poold's but for their end; whether the worker waits for one; and the word that
  // poold counts up and wakes after it has changed a turn.
  std::atomic<uint32_t> turns[kMostGpus];
  std::atomic<uint32_t> wants_turn[kMostGpus];
  std::atomic<uint32_t> bell;
};

// For what one thread alone counts: without the locked instruction of fetch_add.
inline void count(std::atomic<uint64_t>& counter, uint64_t more = 1) {
  counter.store(counter.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}

}  // namespace gpupool::quota
