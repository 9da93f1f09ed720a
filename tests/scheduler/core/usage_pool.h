// Helpers for tests of accounting with a TestPool: what it knows of usage, nodes that report counters,
// crashes.
#pragma once
#include <algorithm>

#include "protocol/control/usage_amounts.h"
#include "scheduler/core/records.h"
#include "tests/scheduler/core/pool.h"
#include "tests/support/catch.h"

namespace gpupool::scheduler {

inline constexpr Time kSecondMs = 1000;

// Returns all that is known of a tenant's usage: rows in the store, and hours without rows. Does not settle.
inline pool::UsageAmounts view_used_by(const TestPool& pool, const std::string& tenant = "a") {
  pool::UsageAmounts sum;
  const auto add = [&](const pool::UsageRow& row) {
    if (row.tenant() != tenant) return;
    for (const pool::UsagePart& part : row.parts()) pool::add_amounts(part.amounts(), sum);
  };
  for (const auto& [key, value] : pool.store) {
    if (!key.starts_with(kUsageHourPrefix)) continue;
    pool::UsageRow row;
    REQUIRE(row.ParseFromString(value));
    add(row);
  }
  pool.core->view_usage(pool.now, [&](const std::string&, int64_t, const pool::UsageRow& row) { add(row); });
  return sum;
}

// The same, and has it stored.
inline pool::UsageAmounts used_by(TestPool& pool, const std::string& tenant = "a") {
  pool.settle();
  const pool::UsageAmounts viewed = view_used_by(pool, tenant);
  pool.core->accrue_all(pool.now);
  pool.settle();
  const pool::UsageAmounts stored = view_used_by(pool, tenant);
  REQUIRE(viewed.SerializeAsString() == stored.SerializeAsString());
  return stored;
}

inline size_t rows(const TestPool& pool) {
  return static_cast<size_t>(std::count_if(pool.store.begin(), pool.store.end(), [](const auto& entry) {
    return entry.first.starts_with(kUsageHourPrefix);
  }));
}

// A node's counters of one lease, as poold reports them.
struct Counters {
  LeaseId lease;
  uint64_t record = 1, revision = 1, nanoseconds = 0, memory = 0, bytes = 0;
  bool complete = false;

  pool::LeaseCounters message(uint64_t node = 1) const {
    pool::LeaseCounters out;
    out.set_lease(lease);
    out.set_record(record);
    out.set_revision(revision);
    out.set_complete(complete);
    pool::GpuCounters& gpu = *out.add_gpus();
    gpu.set_uuid(gpu_uuid(node, 0));
    gpu.set_gpu_nanoseconds(nanoseconds);
    gpu.set_memory_kib_ms(memory);
    out.set_bytes_from_client(bytes);
    return out;
  }
};

// Sends a heartbeat with these counters; `sessions` of their lease.
inline void report_counters(TestPool& pool, Stream node, const Counters& counters, uint32_t sessions = 1,
                            uint64_t number = 1) {
  pool::NodeReport report;
  report.set_ready(true);
  report.set_now_ms(pool.now);
  pool::LeaseUse& use = *report.add_leases();
  use.set_lease(counters.lease);
  use.set_sessions(sessions);
  *report.add_counters() = counters.message(number);
  pool.core->report(node, report, pool.now);
  pool.settle();
}

// The scheduler crashes, and a new one reads the store.
inline Stream crash(TestPool& pool, int gpus = 1) {
  pool.start();
  return pool.register_node(1, 1, gpus);
}

}  // namespace gpupool::scheduler
