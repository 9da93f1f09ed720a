// Memory that poold shares with all workers of one tenant, and with no others: the tenant's limits, which
// poold writes, and what each session uses, which its worker writes. A compromised worker can corrupt its own
// tenant's account only. poold never waits for anything in it. Zero-initialized.
#pragma once
#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "server/quota/quota.h"
#include "server/quota/shared_allocations.h"

namespace gpupool::quota {

constexpr size_t kMostGpus = 64;                // of one host; CUDA's numbers are below this
constexpr size_t kMaxSessionsPerTenant = 1024;  // at one time
constexpr uint32_t kMostShared = 4096;          // pieces of memory shared by several sessions of a tenant

struct Account {
  // Written by poold.
  std::atomic<uint64_t> memory_limit[kMostGpus];  // bytes; 0: no limit
  std::atomic<uint32_t> memory_limited;           // not 0: at least one GPU has a limit
#define QUOTA_IN_WORKERS(type, member, with_memory, unit, key, title, importance, metric, help) \
  std::atomic<type> member;
#include "protocol/control/quota.def"
  // Written by the workers: when the bytes transferred so far are paid for at the tenant's rate, in
  // nanoseconds of CLOCK_MONOTONIC.
  std::atomic<uint64_t> to_device_paid_off;
  std::atomic<uint64_t> to_host_paid_off;

  std::atomic<uint32_t> slots;  // slots in use have lower numbers

  // Used by the workers (account_lock.h): the lock for decisions about memory, and whether a worker waits for
  // it.
  std::atomic<uint32_t> memory_lock;
  std::atomic<uint32_t> memory_lock_waiters;

  // One per session, written by its worker. poold clears it when the worker has ended.
  struct Slot {
    std::atomic<uint64_t> memory_used[kMostGpus];  // bytes
  };
  Slot sessions[kMaxSessionsPerTenant];
  // Memory that sessions share, which is in none of their slots: charged once, until the last session has
  // left it.
  SharedAllocations<kMaxSessionsPerTenant, kMostShared> shared;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

}  // namespace gpupool::quota
