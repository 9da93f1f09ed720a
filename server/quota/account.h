// The memory that poold shares with all workers of one tenant, and with no others: the tenant's limits, written by poold, and
// what each of its sessions uses, written by that session's worker. A worker that has been taken over can spoil its own
// tenant's account only. poold never waits for anything in here.
#pragma once
#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "server/quota/held_memory.h"
#include "server/quota/quota.h"

namespace gpupool::quota {

constexpr size_t kMostGpus = 64;                // of one host, as CUDA counts them
constexpr size_t kMostSessionsOfTenant = 1024;  // at one time
constexpr uint32_t kMostShared = 4096;          // pieces of memory that several sessions of a tenant have

struct Account {
  // poold's.
  std::atomic<uint64_t> memory_limit[kMostGpus];  // bytes; 0: none
  std::atomic<uint32_t> memory_limited;           // not 0: there is such a limit
  std::atomic<uint64_t> to_device_bytes_per_second;
  std::atomic<uint64_t> to_host_bytes_per_second;
  std::atomic<uint32_t> streams;  // this and below: of each session
  std::atomic<uint32_t> modules;
  std::atomic<uint64_t> queued_bytes;
  // The workers': when what has been moved is paid off, in nanoseconds of CLOCK_MONOTONIC.
  std::atomic<uint64_t> to_device_paid_off;
  std::atomic<uint64_t> to_host_paid_off;

  std::atomic<uint32_t> slots;  // those in use are below this

  // The workers' (ledger.h): who decides about memory at this moment, and whether somebody waits to.
  std::atomic<uint32_t> memory_turn;
  std::atomic<uint32_t> memory_turn_wanted;

  // One per session. Its worker's while it lives; poold clears it then.
  struct Slot {
    std::atomic<uint64_t> memory_used[kMostGpus];  // bytes
  };
  Slot sessions[kMostSessionsOfTenant];
  // What sessions share, apart from what each has for itself: charged once, until the last of them has let go.
  HeldMemory<kMostSessionsOfTenant, kMostShared> shared;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

}  // namespace gpupool::quota
