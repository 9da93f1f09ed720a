// Records of usage in the store.
#include "common/text/dates.h"
#include "common/text/names.h"
#include "protocol/lease/token.h"
#include "scheduler/core/records.h"
#include "scheduler/core/records.pb.h"
#include "scheduler/core/usage.h"

namespace gpupool::scheduler {
namespace {

constexpr char kRestMark = '~';
constexpr Time kLatest = Time{1} << 50;  // some 35,000 years: sums and differences of times do not overflow

using StoredParts = google::protobuf::RepeatedPtrField<pool::UsagePart>;

void write_parts(const LeaseUsage::Parts& parts, StoredParts& out) {
  for (const auto& [where, amounts] : parts) {
    pool::UsagePart& part = *out.Add();
    part.set_node(where.first);
    part.set_model(where.second);
    *part.mutable_amounts() = amounts;
  }
}

void read_parts(const StoredParts& stored, LeaseUsage::Parts& parts) {
  for (const pool::UsagePart& part : stored) parts[{part.node(), part.model()}] = part.amounts();
}

bool is_possible(int64_t hour) {
  return hour >= 0 && hour <= kLatest / kHour;
}

std::string hour_prefix(int64_t hour) {
  const std::string hour_of_day = std::to_string(hour % kHoursOfDay);
  return kUsageHourPrefix + day_text(hour / kHoursOfDay) + (hour_of_day.size() == 1 ? "/0" : "/") +
         hour_of_day + "/";
}

}  // namespace

std::string usage_row_key(int64_t hour, const LeaseId& id) {
  return hour_prefix(hour) + lease::hexadecimal(id);
}

// By lease, so that no later rest of the same hour takes its place.
std::string usage_rest_key(const UsageHour& hour) {
  return hour_prefix(hour.hour) + kRestMark + lease::hexadecimal(hour.first);
}

bool is_usage_rest(const std::string& key) {
  return key.starts_with(kUsageHourPrefix) && key.find(kRestMark) != std::string::npos;
}

pool::UsageRow usage_rest(const std::string& tenant, const UsageHour& hour) {
  pool::UsageRow row;
  row.set_tenant(tenant);
  write_parts(hour.rest, *row.mutable_parts());
  return row;
}

void write_usage_hour(const UsageHour& hour, UsageHourRecord& record) {
  record.set_hour(hour.hour);
  record.set_rows(hour.rows);
  record.set_first(hour.first);
  write_parts(hour.rest, *record.mutable_rest());
}

bool read_usage_hour(const UsageHourRecord& record, UsageHour& hour) {
  hour.hour = record.hour();
  hour.rows = record.rows();
  hour.first = record.first();
  read_parts(record.rest(), hour.rest);
  return is_possible(hour.hour);
}

pool::UsageRow usage_row(const Lease& lease, const LeaseUsage& usage) {
  pool::UsageRow row;
  row.set_lease(lease.id);
  row.set_tenant(lease.tenant);
  row.set_user(cut_name(lease.request.user()));
  *row.mutable_labels() = lease.request.labels();
  row.set_program(cut_name(lease.request.program()));
  write_parts(usage.open, *row.mutable_parts());
  return row;
}

void write_usage(const LeaseUsage& usage, LeaseRecord& record) {
  LeaseUsageRecord& out = *record.mutable_usage();
  out.set_until_ms(usage.until);
  out.set_hour(usage.hour);
  write_parts(usage.open, *out.mutable_open());
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
  read_parts(stored.open(), usage.open);
  for (const CountersRecord& counters : stored.counters())
    usage.processes[counters.node()] = {
        .boot = counters.boot(), .counted = counters.counted(), .reported = {}};
  // After a step back of the clock, `hour` is later than `until`.
  return usage.until >= 0 && usage.until <= kLatest && is_possible(usage.hour);
}

}  // namespace gpupool::scheduler
