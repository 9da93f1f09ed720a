#include "server/poold/node/usage_counters.h"

#include <algorithm>

#include "common/log/log.h"
#include "protocol/control/usage_amounts.h"
#include "protocol/lease/token.h"

namespace gpupool::server {
namespace {

using pool::saturating_sum;

constexpr std::chrono::seconds kSampleEvery{1};
// Of the counters of one report. The scheduler takes reports of 1 MiB.
constexpr size_t kMostReportBytes = 256 * 1024;
constexpr int kMostReportedCounters = 2048;

void add(const UsageCounters::Session& session, const std::function<pool::GpuCounters*(size_t gpu)>& of_gpu,
         pool::LeaseCounters& sum) {
  for (size_t gpu = 0; gpu < session.gpus.size(); ++gpu) {
    if (session.gpus[gpu].gpu_nanoseconds == 0) continue;
    if (pool::GpuCounters* const counters = of_gpu(gpu))
      counters->set_gpu_nanoseconds(
          saturating_sum(counters->gpu_nanoseconds(), session.gpus[gpu].gpu_nanoseconds));
  }
  // A worker that was taken over reports what it likes.
  sum.set_bytes_from_client(saturating_sum(sum.bytes_from_client(), session.bytes_from_client));
  sum.set_bytes_to_client(saturating_sum(sum.bytes_to_client(), session.bytes_to_client));
}

}  // namespace

UsageCounters::UsageCounters(asio::io_context& context, Host host, std::function<Clock::time_point()> now)
    : timer_(context), host_(std::move(host)), now_(std::move(now)) {}

UsageCounters::Record& UsageCounters::record_of(const std::string& lease) {
  const auto [record, is_new] = records_.try_emplace(lease);
  if (is_new) {
    record->second.counters.set_lease(lease);
    record->second.counters.set_record(++last_record_);
  }
  return record->second;
}

// Returns null if there is no such GPU.
pool::GpuCounters* UsageCounters::counters_of(Record& record, size_t gpu) {
  const std::string uuid = host_.uuid(gpu);
  if (uuid.empty()) return nullptr;
  for (pool::GpuCounters& counters : *record.counters.mutable_gpus()) {
    if (counters.uuid() == uuid) return &counters;
  }
  pool::GpuCounters* const added = record.counters.add_gpus();
  added->set_uuid(uuid);
  return added;
}

void UsageCounters::session_began(const std::string& lease) {
  if (lease.empty() || !host_.for_each_session) return;
  Record& record = record_of(lease);
  record.counters.set_revision(record.counters.revision() + 1);
  sample();  // the new session's memory is counted from now on
}

void UsageCounters::session_ended(const Session& session) {
  if (session.lease.empty()) return;
  count_memory(session);
  sampled_.erase(session.number);
  Record& record = record_of(session.lease);
  record.counters.set_revision(record.counters.revision() + 1);
  add(
      session, [&](size_t gpu) { return counters_of(record, gpu); }, record.counters);
  if (records_.size() > kMostRecords) drop_oldest();
}

// Adds the memory that the session has, for the time since its last sample.
void UsageCounters::count_memory(const Session& session) {
  const auto now = now_();
  const auto [last, is_new] = sampled_.try_emplace(session.number, now);
  const auto time = std::chrono::duration_cast<std::chrono::milliseconds>(now - last->second);
  if (is_new || time.count() <= 0) return;
  last->second += time;
  Record& record = record_of(session.lease);
  for (size_t gpu = 0; gpu < session.gpus.size(); ++gpu) {
    if (session.gpus[gpu].memory_used == 0) continue;
    if (pool::GpuCounters* const counters = counters_of(record, gpu))
      counters->set_memory_kib_ms(
          saturating_sum(counters->memory_kib_ms(),
                         session.gpus[gpu].memory_used / 1024 * static_cast<uint64_t>(time.count())));
  }
}

// Divides each GPU's energy among all sessions, of which those without a lease are not counted further.
void UsageCounters::count_energy(const std::vector<Session>& sessions) {
  size_t gpus = 0;
  for (const Session& session : sessions) gpus = std::max(gpus, session.gpus.size());
  for (size_t gpu = 0; gpu < gpus; ++gpu) {
    const auto millijoules = host_.energy(gpu);
    if (!millijoules) continue;
    std::vector<EnergyShares::Used> used;
    for (const Session& session : sessions) {
      if (gpu < session.gpus.size()) used.push_back({session.number, session.gpus[gpu].gpu_nanoseconds});
    }
    for (const EnergyShares::Share& share : energy_[gpu].divide(*millijoules, used)) {
      const auto whose = std::ranges::find(sessions, share.session, &Session::number);
      if (whose->lease.empty()) continue;
      if (pool::GpuCounters* const counters = counters_of(record_of(whose->lease), gpu))
        counters->set_energy_millijoules(saturating_sum(counters->energy_millijoules(), share.millijoules));
    }
  }
}

void UsageCounters::sample() {
  running_.clear();
  if (!host_.for_each_session) return;
  std::map<uint64_t, Clock::time_point> still;
  std::vector<Session> all;
  host_.for_each_session([&](const Session& session) {
    if (host_.energy) all.push_back(session);
    if (session.lease.empty()) return;
    count_memory(session);
    still[session.number] = sampled_.at(session.number);
    running_[session.lease].push_back(session);
  });
  sampled_ = std::move(still);
  count_energy(all);
  if (!running_.empty() && !awaiting_) await_sample();
}

void UsageCounters::await_sample() {
  awaiting_ = true;
  timer_.expires_after(kSampleEvery);
  timer_.async_wait([this](const asio::error_code& status) {
    awaiting_ = false;
    if (!status) sample();
  });
}

void UsageCounters::begin_report() {
  sample();
  report_bytes_ = 0;
  for (const auto& [lease, sessions] : running_) record_of(lease);  // after an upgrade from an older poold
  for (auto& [lease, record] : records_) record.reported = false;
}

bool UsageCounters::report(const std::string& lease, pool::NodeReport& out) {
  const auto found = records_.find(lease);
  if (found == records_.end() || found->second.reported) return true;
  Record now{.counters = found->second.counters};
  const auto sessions = running_.find(lease);
  if (sessions == running_.end()) {
    now.counters.set_complete(true);
  } else {
    for (const Session& session : sessions->second)
      add(
          session, [&](size_t gpu) { return counters_of(now, gpu); }, now.counters);
  }
  const size_t bytes = now.counters.ByteSizeLong();
  if (report_bytes_ + bytes > kMostReportBytes || out.counters_size() >= kMostReportedCounters) return false;
  report_bytes_ += bytes;
  found->second.reported = true;
  *out.add_counters() = std::move(now.counters);
  return true;
}

void UsageCounters::report_others(pool::NodeReport& out) {
  auto next = records_.upper_bound(last_reported_);
  for (size_t left = records_.size(); left > 0; --left, ++next) {
    if (next == records_.end()) next = records_.begin();
    if (!report(next->first, out)) return;
    last_reported_ = next->first;
  }
}

void UsageCounters::recorded(const pool::CountersRecorded& what) {
  const auto found = records_.find(what.lease());
  if (found == records_.end() || found->second.counters.record() != what.record() ||
      found->second.counters.revision() != what.revision())
    return;
  sample();
  if (!running_.contains(what.lease())) records_.erase(found);
}

void UsageCounters::drop_oldest() {
  sample();
  auto oldest = records_.end();
  for (auto one = records_.begin(); one != records_.end(); ++one) {
    if (running_.contains(one->first)) continue;
    if (oldest == records_.end() || one->second.counters.record() < oldest->second.counters.record())
      oldest = one;
  }
  if (oldest == records_.end()) return;
  log::warning("usage_lost", {{"lease", lease::hexadecimal(oldest->first)},
                              {"reason", "no scheduler has stored the usage of the last leases"}});
  records_.erase(oldest);
}

void UsageCounters::stop() {
  timer_.cancel();
}

void UsageCounters::save(upgrade::Leases& to) const {
  for (const auto& [lease, record] : records_) *to.add_counters() = record.counters;
  to.set_counter_records(last_record_);
}

void UsageCounters::restore(const upgrade::Leases& from) {
  for (const pool::LeaseCounters& counters : from.counters()) records_[counters.lease()].counters = counters;
  last_record_ = from.counter_records();
}

}  // namespace gpupool::server
