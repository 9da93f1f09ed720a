// Records of usage in the store.
#include "common/text/dates.h"
#include "protocol/lease/token.h"
#include "scheduler/core/records.h"
#include "scheduler/core/records.pb.h"
#include "scheduler/core/usage.h"

namespace gpupool::scheduler {
namespace {

constexpr Time kLatest = Time{1} << 50;  // some 35,000 years: sums and differences of times do not overflow

void write_parts(const LeaseUsage& usage, google::protobuf::RepeatedPtrField<pool::UsagePart>& out) {
  for (const auto& [where, amounts] : usage.open) {
    pool::UsagePart& part = *out.Add();
    part.set_node(where.first);
    part.set_model(where.second);
    *part.mutable_amounts() = amounts;
  }
}

}  // namespace

std::string usage_row_key(int64_t hour, const LeaseId& id) {
  const std::string hour_of_day = std::to_string(hour % kHoursOfDay);
  return kUsageHourPrefix + day_text(hour / kHoursOfDay) + (hour_of_day.size() == 1 ? "/0" : "/") +
         hour_of_day + "/" + lease::hexadecimal(id);
}

pool::UsageRow usage_row(const Lease& lease) {
  pool::UsageRow row;
  row.set_lease(lease.id);
  row.set_tenant(lease.tenant);
  row.set_user(lease.request.user());
  *row.mutable_labels() = lease.request.labels();
  row.set_program(lease.request.program());
  write_parts(lease.usage, *row.mutable_parts());
  return row;
}

void write_usage(const LeaseUsage& usage, LeaseRecord& record) {
  LeaseUsageRecord& out = *record.mutable_usage();
  out.set_until_ms(usage.until);
  out.set_hour(usage.hour);
  write_parts(usage, *out.mutable_open());
  for (const auto& [node, process] : usage.processes) {
    CountersRecord& counters = *out.add_counters();
    counters.set_node(node);
    counters.set_boot(process.boot);
    *counters.mutable_counted() = process.counted;
  }
}

bool read_usage(const LeaseRecord& record, LeaseUsage& usage) {
  const LeaseUsageRecord& stored = record.usage();
  usage.until = stored.until_ms();
  usage.hour = stored.hour();
  for (const pool::UsagePart& part : stored.open()) usage.open[{part.node(), part.model()}] = part.amounts();
  for (const CountersRecord& counters : stored.counters())
    usage.processes[counters.node()] = {
        .boot = counters.boot(), .counted = counters.counted(), .reported = {}};
  // After a step back of the clock, `hour` is later than `until`.
  return usage.until >= 0 && usage.until <= kLatest && usage.hour >= 0 && usage.hour <= kLatest / kHour;
}

}  // namespace gpupool::scheduler
