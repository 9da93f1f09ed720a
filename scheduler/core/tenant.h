// A tenant as the scheduler's core knows it: what it may have, and what it has.
#pragma once
#include <string>

#include "scheduler/core/node.h"

namespace gpupool::scheduler {

struct PoolTotal {
  uint64_t milli = 0;
  uint64_t memory = 0;
};

struct Tenant {
  std::string name;
  bool configured = false;
  pool::TenantQuota as_configured;       // all fields
  std::optional<pool::TenantQuota> set;  // by an operator, the fields that it has changed
  pool::TenantQuota quota;               // what counts: both together

  uint64_t milli = 0;  // this to leases: that it has
  uint64_t memory = 0;
  uint32_t leases = 0;
  uint32_t waiting = 0;
  uint64_t granted = 0;
  uint64_t milli_ms = 0;  // thousandths times milliseconds until `counted`
  Time counted = 0;

  // Its dominant share: of what it has the most of, how much of the pool that is.
  double share(const PoolTotal& total) const {
    const double compute = total.milli == 0 ? 0 : static_cast<double>(milli) / static_cast<double>(total.milli);
    const double bytes = total.memory == 0 ? 0 : static_cast<double>(memory) / static_cast<double>(total.memory);
    return std::max(compute, bytes);
  }
  void count(Time now) {
    milli_ms += milli * static_cast<uint64_t>(std::max<Time>(0, now - counted));
    counted = now;
  }
  // `configured` and `set` together.
  void combine();
};

// All fields, with what each is when nobody has said anything.
pool::TenantQuota default_quota();
pool::Policy default_policy();
// Changes of `changes` that make no sense: why.
std::optional<std::string> check_quota(const pool::TenantQuota& changes);
std::optional<std::string> check_policy(const pool::Policy& changes);

}  // namespace gpupool::scheduler
