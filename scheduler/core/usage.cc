// Core: accounting of what leases use (docs/adr/0048-usage.md).
//
// What a lease holds is known here: accrue() must run before anything changes that decides it. How long is
// measured by the core's clock, which never jumps; the wall clock says in which hour that was. What its
// programs use is reported by nodes in counters that only grow; each report is compared with the counters
// that are part of the lease's amounts already, so that a repeated one adds nothing.
#include <algorithm>
#include <iterator>

#include "protocol/lease/token.h"
#include "scheduler/core/core.h"
#include "scheduler/core/records.h"

namespace gpupool::scheduler {
namespace {

constexpr Time kLongestGap = 31 * kHoursOfDay * kHour;
constexpr int kMostCounters = 4096;  // of one report
constexpr Time kBetweenScans = 1000;
constexpr size_t kFewLeases = 16;
constexpr uint32_t kMostRows = 1000;  // of a tenant in an hour, besides their rest
constexpr size_t kMostHours = 4;      // of which a tenant's rows are counted at a time
constexpr int64_t kHoursUntilOver = 3;

uint64_t beyond(uint64_t now, uint64_t before) {
  return now > before ? now - before : 0;
}

// Returns the counters of this GPU, added if there are none.
pool::GpuCounters& counters_of(const std::string& uuid, pool::LeaseCounters& all) {
  for (pool::GpuCounters& gpu : *all.mutable_gpus()) {
    if (gpu.uuid() == uuid) return gpu;
  }
  pool::GpuCounters& added = *all.add_gpus();
  added.set_uuid(uuid);
  return added;
}

// Returns "" if the GPU is unknown.
std::string model_of(const Nodes& nodes, const std::string& node, const std::string& uuid) {
  const auto found = nodes.find(node);
  if (found == nodes.end()) return "";
  for (const Gpu& gpu : found->second.gpus) {
    if (gpu.uuid == uuid) return gpu.model;
  }
  return "";
}

std::string first_model_of(const Nodes& nodes, const std::string& node) {
  const auto found = nodes.find(node);
  return found == nodes.end() || found->second.gpus.empty() ? "" : found->second.gpus.front().model;
}

bool is_empty(const pool::UsageAmounts& amounts) {
  return std::all_of(std::begin(pool::kUsageFields), std::end(pool::kUsageFields),
                     [&](const pool::UsageField& field) { return field.get(amounts) == 0; });
}

}  // namespace

pool::UsageAmounts count_gpu(const pool::GpuCounters& now, pool::GpuCounters& before) {
  pool::UsageAmounts more;
  more.set_gpu_nanoseconds(beyond(now.gpu_nanoseconds(), before.gpu_nanoseconds()));
  more.set_used_memory_kib_ms(beyond(now.memory_kib_ms(), before.memory_kib_ms()));
  more.set_energy_millijoules(beyond(now.energy_millijoules(), before.energy_millijoules()));
  before.set_gpu_nanoseconds(std::max(now.gpu_nanoseconds(), before.gpu_nanoseconds()));
  before.set_memory_kib_ms(std::max(now.memory_kib_ms(), before.memory_kib_ms()));
  before.set_energy_millijoules(std::max(now.energy_millijoules(), before.energy_millijoules()));
  return more;
}

pool::UsageAmounts count_bytes(const pool::LeaseCounters& now, pool::LeaseCounters& before) {
  pool::UsageAmounts more;
  more.set_bytes_from_client(beyond(now.bytes_from_client(), before.bytes_from_client()));
  more.set_bytes_to_client(beyond(now.bytes_to_client(), before.bytes_to_client()));
  before.set_bytes_from_client(std::max(now.bytes_from_client(), before.bytes_from_client()));
  before.set_bytes_to_client(std::max(now.bytes_to_client(), before.bytes_to_client()));
  return more;
}

void Core::begin_usage(Lease& lease, Time now) {
  if (lease.usage.until != 0) return;  // restored
  lease.usage.until = calendar(now);
  lease.usage.hour = lease.usage.until / kHour;
}

// Adds what the lease holds during `time`. Free of charge are parts that are there for a move, parts of
// suspended leases, and parts on lost nodes. Lease::counted does not matter: when one node of a lease is
// lost, its quota is released at once, but its parts on other nodes stay in use until these have ended it.
void Core::add_held(const Lease& lease, LeaseUsage& usage, Time time, const Spend& spend) {
  if (time <= 0) return;
  for (const LeasePart& part : lease.parts) {
    if (!part.counted || !part.allocated || part.node->lost) continue;
    for (const auto& share : part.shares) {
      const Gpu& gpu = part.node->gpus[share.gpu];
      pool::UsageAmounts more;
      more.set_leased_milli_ms(share.amount.milli * static_cast<uint64_t>(time));
      more.set_leased_memory_kib_ms(share.amount.memory / 1024 * static_cast<uint64_t>(time));
      pool::add_amounts(more, usage.open[{part.node->name(), gpu.model}]);
      spend(usage.hour / kHoursOfDay, gpu.model, more);
    }
  }
}

// Brings `usage`, which is the lease's or a copy, up to this time of the wall clock. `end_hour` takes
// usage.open when an hour is over. An hour never comes again: usage.hour does not go back.
void Core::advance(const Lease& lease, LeaseUsage& usage, Time until, const std::function<void()>& end_hour,
                   const Spend& spend) const {
  usage.until = std::max(usage.until, until - kLongestGap);
  while (usage.until < until) {
    if (const int64_t hour = usage.until / kHour; hour > usage.hour) {
      end_hour();
      usage.hour = hour;
    }
    const Time end = std::min(until, (usage.hour + 1) * kHour);
    add_held(lease, usage, end - usage.until, spend);
    usage.until = end;
  }
  for (auto& [node, process] : usage.processes) count_reported(usage, node);
}

// Brings the lease's amounts up to now. Call it before the lease's parts, or whether they count, change.
void Core::accrue(Lease& lease, Time now) {
  if (calendar(now) - lease.usage.until > kLongestGap)
    note("usage_cut",
         {{"lease", lease::hexadecimal(lease.id)},
          {"reason", "its usage was last stored more than 31 days ago, or a scheduler's clock is wrong"}},
         Note::Level::warning);
  Tenant& whose = tenant(lease.tenant);
  const auto end_hour = [&] { write_hour(lease); };
  const auto spend = [&](int64_t day, const std::string& model, const pool::UsageAmounts& more) {
    whose.spending.add(day, model, more);
    dirty_spending_.insert(whose.name);
  };
  advance(lease, lease.usage, calendar(now), end_hour, spend);
  dirty_leases_.insert(lease.id);
}

// A tenant decides how many leases it has in an hour, and what is in their rows. Beyond a limit, leases share
// one.
void Core::write_hour(Lease& lease) {
  if (lease.usage.open.empty()) return;
  UsageHour& hour = usage_hour(tenant(lease.tenant), lease.usage.hour);
  if (hour.rows < kMostRows) {
    ++hour.rows;
    effects_.writes.push_back(
        {usage_row_key(lease.usage.hour, lease.id), usage_row(lease, lease.usage).SerializeAsString()});
  } else {
    if (hour.rest.empty()) hour.first = lease.id;
    for (const auto& [where, amounts] : lease.usage.open) pool::add_amounts(amounts, hour.rest[where]);
  }
  dirty_spending_.insert(lease.tenant);
  lease.usage.open.clear();
}

UsageHour& Core::usage_hour(Tenant& whose, int64_t hour) {
  std::deque<UsageHour>& hours = whose.spending.hours;
  const auto found =
      std::find_if(hours.begin(), hours.end(), [&](const UsageHour& one) { return one.hour == hour; });
  if (found != hours.end()) return *found;
  if (hours.size() == kMostHours) {
    write_rest(whose, hours.front());
    hours.pop_front();
  }
  hours.push_back({.hour = hour, .rows = 0, .first = {}, .rest = {}});
  return hours.back();
}

void Core::write_rest(const Tenant& whose, const UsageHour& hour) {
  if (hour.rest.empty()) return;
  effects_.writes.push_back({usage_rest_key(hour), usage_rest(whose.name, hour).SerializeAsString()});
  dirty_spending_.insert(whose.name);
}

// Writes the rests of hours that are over for all leases.
void Core::write_rests(Time now) {
  const int64_t hour = calendar(now) / kHour;
  for (auto& [name, whose] : tenants_) {
    std::erase_if(whose.spending.hours, [&](const UsageHour& one) {
      if (one.hour + kHoursUntilOver > hour) return false;
      write_rest(whose, one);
      return true;
    });
  }
}

// Adds what the node has reported and is not counted yet.
void Core::count_reported(LeaseUsage& usage, const std::string& node) const {
  LeaseUsage::Process& process = usage.processes.at(node);
  const auto add = [&](const std::string& model, const pool::UsageAmounts& more) {
    if (!is_empty(more)) pool::add_amounts(more, usage.open[{node, model}]);
  };
  std::string model = first_model_of(nodes_, node);
  for (const pool::GpuCounters& gpu : process.reported.gpus()) {
    model = model_of(nodes_, node, gpu.uuid());
    add(model, count_gpu(gpu, counters_of(gpu.uuid(), process.counted)));
  }
  // Bytes are those of a session, not of a GPU: they go to one of the models that it used.
  add(model, count_bytes(process.reported, process.counted));
}

// Takes the counters of a report, and has the node forget those that are complete once they are stored. A
// lease that is unknown has ended, with all that this node could still say counted, or was never here.
void Core::take_counters(Node& node, const pool::NodeReport& report, Time now) {
  node.counters_recorded.clear();
  if (!node.distrust_reason.empty()) return;
  for (int i = 0; i < report.counters_size() && i < kMostCounters; ++i) {
    const pool::LeaseCounters& told = report.counters(i);
    if (told.lease().size() != lease::kIdBytes) continue;
    Lease* const lease = leases_.find(told.lease());
    const bool was_here =
        lease && (node.leases.contains(lease->id) || lease->usage.processes.contains(node.name()));
    if (was_here) take_counters(*lease, node, told);
    if (!told.complete()) continue;
    if (was_here) accrue(*lease, now);
    pool::CountersRecorded& recorded = node.counters_recorded.emplace_back();
    recorded.set_lease(told.lease());
    recorded.set_record(told.record());
    recorded.set_revision(told.revision());
  }
}

void Core::take_counters(Lease& lease, const Node& node, const pool::LeaseCounters& told) {
  LeaseUsage::Process& process = lease.usage.processes[node.name()];
  if (process.boot != node.boot() || process.counted.record() != told.record()) {
    count_reported(lease.usage, node.name());  // the last of the earlier record
    dirty_leases_.insert(lease.id);
    process = {.boot = node.boot(), .counted = {}, .reported = {}};
    process.counted.set_record(told.record());
  }
  process.reported.Clear();
  process.reported.set_bytes_from_client(told.bytes_from_client());
  process.reported.set_bytes_to_client(told.bytes_to_client());
  for (const pool::GpuCounters& gpu : told.gpus()) {
    const auto is_it = [&](const Gpu& has) { return has.uuid == gpu.uuid(); };
    const bool known = std::any_of(node.gpus.begin(), node.gpus.end(), is_it);
    if (known) counters_of(gpu.uuid(), process.reported) = gpu;
  }
}

// Has the amounts of each lease stored from time to time: not of all leases in one transaction.
void Core::tick_usage(Time now) {
  if (now < usage_at_) return;
  const Time interval = policy_.usage_ms();
  usage_at_ = now + std::min(kBetweenScans, interval);
  size_t left = kFewLeases + leases_.all().size() * static_cast<size_t>(kBetweenScans) * 2 /
                                 static_cast<size_t>(std::max(kBetweenScans, interval));
  for (auto& [id, lease] : leases_.all()) {
    if (calendar(now) - lease.usage.until < interval) continue;
    accrue(lease, now);
    if (--left == 0) break;
  }
  write_rests(now);
  check_budgets(now);
}

void Core::accrue_all(Time now) {
  for (auto& [id, lease] : leases_.all()) accrue(lease, now);
}

// After a step back, what leases hold belongs to their latest hour until the clock has reached it again.
void Core::clock_stepped(Time step, Time now) {
  accrue_all(now);
  calendar_offset_ += step;
  for (auto& [id, lease] : leases_.all())
    lease.usage.until = std::max<Time>(0, lease.usage.until + step);  // accrue_all() has it stored
  note("clock_stepped", {{"milliseconds", std::to_string(step)}}, Note::Level::warning);
}

void Core::write_also(std::vector<Write> writes) {
  for (Write& write : writes) effects_.writes.push_back(std::move(write));
}

void Core::view_usage(Time now, const VisitUsage& visit) const {
  for (const auto& [id, lease] : leases_.all()) {
    LeaseUsage usage = lease.usage;
    const auto end_hour = [&] {
      if (!usage.open.empty()) visit(usage_row_key(usage.hour, id), usage.hour, usage_row(lease, usage));
      usage.open.clear();
    };
    advance(lease, usage, calendar(now), end_hour, [](const auto&...) {});
    end_hour();
  }
  for (const auto& [name, whose] : tenants_) {
    for (const UsageHour& hour : whose.spending.hours) {
      if (!hour.rest.empty()) visit(usage_rest_key(hour), hour.hour, usage_rest(name, hour));
    }
  }
}

}  // namespace gpupool::scheduler
