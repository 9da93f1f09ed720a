// A tenant in the scheduler's core: its quota and its usage. Owned by Core; its thread.
#pragma once
#include <string>
#include <vector>

#include "scheduler/core/budget.h"
#include "scheduler/core/node.h"

namespace gpupool::scheduler {

struct PoolTotal {
  uint64_t milli = 0;
  uint64_t memory = 0;
};

struct Tenant {
  std::string name;
  bool configured = false;
  pool::TenantQuota as_configured;       // all fields are set
  std::optional<pool::TenantQuota> set;  // only the fields that an operator has set
  // The effective quota: as_configured overridden by the windows that apply, and these by `set`.
  pool::TenantQuota quota;
  std::vector<QuotaWindow> windows;
  std::vector<bool> windows_applied;
  std::vector<Budget> budgets;
  Spending spending;
  std::string over_budget;  // not empty: why its requests wait

  uint64_t milli = 0;   // thousandths of GPUs in its leases
  uint64_t memory = 0;  // bytes of GPU memory in its leases
  uint32_t leases = 0;
  uint32_t waiting = 0;   // requests in the queue
  uint64_t granted = 0;   // total number of leases granted
  uint64_t milli_ms = 0;  // GPU thousandths times milliseconds, accumulated until `counted`
  Time counted = 0;

  // Returns the dominant share: the larger of its fractions of the pool's compute and of the pool's memory, 0
  // to 1.
  double share(const PoolTotal& total) const {
    const double compute =
        total.milli == 0 ? 0 : static_cast<double>(milli) / static_cast<double>(total.milli);
    const double bytes =
        total.memory == 0 ? 0 : static_cast<double>(memory) / static_cast<double>(total.memory);
    return std::max(compute, bytes);
  }
  void count(Time now) {
    milli_ms += milli * static_cast<uint64_t>(std::max<Time>(0, now - counted));
    counted = now;
  }
  // Recomputes `quota`.
  void combine();
};

// The defaults; all fields are set.
pool::TenantQuota default_quota();
pool::Policy default_policy();
// Validate the fields that `changes` sets. Return null if they are valid, else the reason.
std::optional<std::string> check_quota(const pool::TenantQuota& changes);
std::optional<std::string> check_policy(const pool::Policy& changes);

}  // namespace gpupool::scheduler
