// What a lease uses, for accounting (docs/adr/0048-usage.md). Core keeps it in the lease's record, so that it
// is stored in the same transaction as all that decides it. The row of an hour is written when the hour or
// the lease is over, and is not changed afterwards. Values; Core's thread.
#pragma once
#include <map>
#include <string>
#include <utility>

#include "protocol/control/usage_amounts.h"
#include "scheduler/core/types.h"

namespace gpupool::scheduler {

class LeaseRecord;  // records.proto
class UsageHourRecord;
struct Lease;

constexpr Time kHour = 3'600'000;
constexpr int64_t kHoursOfDay = 24;

struct LeaseUsage {
  using Parts = std::map<std::pair<std::string, std::string>, pool::UsageAmounts>;  // by node and GPU model
  // A poold process that reports counters.
  struct Process {
    std::string boot;
    pool::LeaseCounters counted;   // these are part of the lease's amounts
    pool::LeaseCounters reported;  // in the last report; not stored, because poold repeats them
  };
  Time until = 0;                            // the amounts are complete up to this time of the wall clock
  int64_t hour = 0;                          // since 1970; not before that of an earlier row
  Parts open;                                // of `hour`
  std::map<std::string, Process> processes;  // by node
};

// The rows of a tenant in an hour.
struct UsageHour {
  int64_t hour = 0;
  uint32_t rows = 0;       // leases with a row of their own
  LeaseId first;           // the first lease in `rest`
  LeaseUsage::Parts rest;  // of the other leases; it becomes one more row
};

// Return the amounts by which `now` exceeds `before`, and raise `before` to `now`. A counter that went back
// adds nothing.
pool::UsageAmounts count_gpu(const pool::GpuCounters& now, pool::GpuCounters& before);
pool::UsageAmounts count_bytes(const pool::LeaseCounters& now, pool::LeaseCounters& before);

// Records of the store (usage_records.cc).
std::string usage_row_key(int64_t hour, const LeaseId& id);             // records.h
pool::UsageRow usage_row(const Lease& lease, const LeaseUsage& usage);  // of usage.hour
std::string usage_rest_key(const UsageHour& hour);                      // records.h
bool is_usage_rest(const std::string& key);
pool::UsageRow usage_rest(const std::string& tenant, const UsageHour& hour);
void write_usage_hour(const UsageHour& hour, UsageHourRecord& record);
bool read_usage_hour(const UsageHourRecord& record, UsageHour& hour);
void write_usage(const LeaseUsage& usage, LeaseRecord& record);
bool read_usage(const LeaseRecord& record, LeaseUsage& usage);  // false: a time is out of range

}  // namespace gpupool::scheduler
