#include "server/poold/node/leases.h"

#include <algorithm>
#include <asio/post.hpp>

#include "common/log/log.h"
#include "common/text/gpu_uuid.h"
#include "common/text/printable.h"
#include "server/poold/upgrade/values.h"
#include "server/quota/account.h"
#include "server/tenants/quota_messages.h"

namespace gpupool::server {
namespace {

constexpr int kMostLabels = 8;
constexpr size_t kShortId = 8;  // digits of the ID in a tenant's name
// How long an ended lease is remembered: until its last token has expired, even with clock skew.
constexpr std::chrono::milliseconds kRemembered = lease::kLongestLife + 2 * lease::kClockSkew;

Error refused(const std::string& why) {
  return {ErrorCode::refused, why};
}

// `gpus`: the GPU numbers of the lease's shares.
quota::Quota quota_of(const lease::Lease& lease, const std::vector<uint32_t>& gpus) {
  quota::Quota quota;
  quota.each = {.memory_bytes = lease.shares(0).memory_bytes(),
                .compute_milli = lease.shares(0).compute_milli()};
  for (size_t i = 1; i < gpus.size(); ++i) {
    const lease::Share& share = lease.shares(static_cast<int>(i));
    const quota::GpuLimits limits{.memory_bytes = share.memory_bytes(),
                                  .compute_milli = share.compute_milli()};
    if (quota.with(limits) != quota.each) quota.gpus[gpus[i]] = limits;
  }
  quota.mode = lease.mode() == lease::HARD ? quota::Mode::hard : quota::Mode::elastic;
  quota.priority = lease.priority() == lease::LATENCY_CRITICAL ? quota::Priority::latency_critical
                   : lease.priority() == lease::BEST_EFFORT    ? quota::Priority::best_effort
                                                               : quota::Priority::normal;
  quota.to_device_bytes_per_second = lease.to_device_bytes_per_second();
  quota.to_host_bytes_per_second = lease.to_host_bytes_per_second();
  quota.sessions = lease.sessions();
  return quota;
}

}  // namespace

Leases::Leases(asio::io_context& context, Tenants& tenants, std::string node, std::string boot,
               std::vector<lease::PublicKey> keys, Host host)
    : context_(context),
      tenants_(tenants),
      node_(std::move(node)),
      boot_(std::move(boot)),
      keys_(std::move(keys)),
      host_(std::move(host)),
      suspensions_(host_.suspension,
                   [this](const std::string& id) {
                     const auto known = entries_.find(id);
                     return known == entries_.end() ? std::string() : known->second.tenant;
                   }),
      counters_(context, host_.usage) {}

Result<std::vector<uint32_t>> Leases::find_gpus(const lease::Lease& lease) const {
  std::vector<uint32_t> gpus;
  const auto& devices = host_.devices();
  for (const lease::Share& share : lease.shares()) {
    const auto found = std::find_if(devices.begin(), devices.end(), [&](const control::Device& device) {
      return gpu_uuid_text(device.uuid()) == share.gpu_uuid();
    });
    const auto index = static_cast<size_t>(found - devices.begin());
    if (found == devices.end() || index >= quota::kMostGpus)
      return refused("the lease names the GPU " + share.gpu_uuid() + ", which this server does not have");
    gpus.push_back(static_cast<uint32_t>(index));
  }
  return gpus;
}

// Uses the whole ID if another lease of the tenant begins with the same digits.
std::string Leases::new_name(const lease::Lease& lease) const {
  const std::string digits = lease::hexadecimal(lease.id());
  std::string name = lease.tenant() + "/" + digits.substr(0, kShortId);
  return tenants_.find(name) ? lease.tenant() + "/" + digits : name;
}

Result<Leases::Admitted> Leases::admit(std::string_view token, bool resumes) {
  if (!accepts_leases())
    return refused("this server does not accept leases: [pool] public_keys is not configured");
  const auto lease = lease::check_lease(token, keys_, node_, host_.now());
  if (!lease) return lease.error();
  if (!lease->boot().empty() && lease->boot() != boot_) {
    return refused("the lease has ended: this server was restarted after the lease was granted");
  }
  remove_finished();
  const auto known = entries_.find(lease->id());
  const auto ended = ended_.find(lease->id());
  if ((ended != ended_.end() && lease->serial() <= ended->second) ||
      (known != entries_.end() && known->second.ending)) {
    return refused("the lease has ended" + (known == entries_.end() ? "" : ": " + known->second.reason));
  }
  auto gpus = find_gpus(*lease);
  if (!gpus) return gpus.error();
  const bool outdated = known != entries_.end() && lease->serial() < known->second.serial;
  if (outdated && !resumes) return refused("the lease token is outdated: the lease was renewed");
  if (known != entries_.end() && *gpus != known->second.gpus) {
    return refused("the lease token names other GPUs than the lease's earlier tokens");
  }
  const auto admitted = [&](const Entry& entry) {
    return Admitted{entry.tenant, lease::hexadecimal(lease->id()),
                    suspensions_.refuses_sessions(lease->id())};
  };
  if (outdated) return admitted(known->second);

  Entry& entry =
      known != entries_.end() ? known->second : entries_.try_emplace(lease->id(), context_).first->second;
  const quota::Quota quota = quota_of(*lease, *gpus);
  const bool is_new = known == entries_.end();
  if (is_new) {
    entry.tenant = new_name(*lease);
    entry.gpus = std::move(*gpus);
    for (int i = 0; i < std::min(lease->labels_size(), kMostLabels); ++i)
      entry.labels.push_back(printable_message(lease->labels(i)));
  }
  if (is_new || quota != entry.quota) {
    entry.quota = quota;
    put_tenant(entry);
  }
  entry.serial = lease->serial();
  entry.expires = std::max(entry.expires, Time(lease->expires_ms()));
  return admitted(entry);
}

void Leases::put_tenant(const Entry& entry) {
  Tenant tenant;
  tenant.name = entry.tenant;
  tenant.quota = entry.quota;
  tenant.gpus = entry.gpus;
  tenant.labels = entry.labels;
  tenants_.put_lease(std::move(tenant));
}

void Leases::await_end(const std::string& id, Entry& entry, asio::steady_timer::time_point due) {
  entry.end.expires_at(due);
  entry.end.async_wait([this, id](const asio::error_code& status) {
    const auto its = entries_.find(id);
    if (!status && its != entries_.end())
      host_.end_sessions(its->second.tenant, "the lease has ended: " + its->second.reason);
    if (!status) post_cleanup();
  });
}

void Leases::end(const std::string& id, const std::string& reason, std::chrono::milliseconds grace,
                 uint64_t last_serial) {
  const auto [before, is_new] = ended_.try_emplace(id, last_serial);
  // A lease that came back after it had moved away ends with a higher serial.
  if (is_new || last_serial > before->second) {
    log::info("lease_ends", {{"lease", lease::hexadecimal(id)},
                             {"grace_ms", grace.count()},
                             {"last_serial", last_serial},
                             {"reason", reason}});
  }
  before->second = std::max(before->second, last_serial);
  if (is_new) {
    ended_in_order_.emplace_back(id, host_.now() + kRemembered);
    forget_ended();
  }
  suspensions_.lease_ends(id);
  const auto found = entries_.find(id);
  if (found == entries_.end()) {
    suspensions_.forget(id);
    // Otherwise the scheduler does not read the reports; it repeats the order.
    if (to_report_.size() < kMostEnded) to_report_.try_emplace(id, 0);
    post_cleanup();
    return;
  }
  Entry& entry = found->second;
  const auto due = asio::steady_timer::clock_type::now() + grace;
  if (!entry.ending || due < entry.end.expiry()) {  // the scheduler repeats the order until it is answered
    await_end(id, entry, due);
  }
  entry.ending = true;
  entry.reason = reason.empty() ? "no reason given" : reason;
  host_.refuse_waiting(entry.tenant, "the lease has ended: " + entry.reason);  // admit() refuses others
  post_cleanup();
}

void Leases::move(const std::string& id, const std::string& address, uint64_t serial) {
  const auto found = entries_.find(id);
  const bool known = found != entries_.end();
  if (!known || (!found->second.ending && host_.sessions(found->second.tenant) == 0))
    return end(id, "it has moved to " + address, std::chrono::milliseconds(0),
               serial == 0 ? kAnySerial : serial);
  Entry& entry = found->second;
  if (entry.ending) return;
  entry.moving = true;
  host_.move_sessions(entry.tenant, address, [this, id](const std::string& reason) {
    const auto its = entries_.find(id);
    if (its != entries_.end()) its->second.cannot_move = reason;
  });
}

void Leases::suspend(const std::string& id, uint64_t number, bool resume) {
  const auto found = entries_.find(id);
  const auto ended = ended_.find(id);
  const bool over =
      found != entries_.end() ? found->second.ending : ended != ended_.end() && ended->second == kAnySerial;
  if (over) return;
  suspensions_.order(id, number, resume);
  post_cleanup();
}

bool Leases::is_suspended(const std::string& lease) const {
  return std::ranges::any_of(entries_, [&](const auto& one) {
    return lease::hexadecimal(one.first) == lease && suspensions_.refuses_sessions(one.first);
  });
}

void Leases::migration_failed(const std::string& tenant, const std::string& reason) {
  for (auto& [id, entry] : entries_) {
    if (entry.moving && entry.tenant == tenant) entry.cannot_move = reason;
  }
}

// Posted, so that all callbacks of a session's end run before.
void Leases::post_cleanup() {
  if (stopped_ || std::exchange(cleanup_posted_, true)) return;
  asio::post(context_, [this] {
    cleanup_posted_ = false;
    remove_finished();
    // The scheduler answers a report at once, with the next order to move.
    const bool moved = std::ranges::any_of(entries_, [this](const auto& one) {
      return one.second.moving && host_.sessions(one.second.tenant) == 0;
    });
    if ((suspensions_.update() || moved || !to_report_.empty()) && changed_) changed_();
  });
}

void Leases::remove_finished() {
  const Time now = host_.now();
  for (auto at = entries_.begin(); at != entries_.end();) {
    Entry& entry = at->second;
    const bool over = entry.ending || now > entry.expires + lease::kClockSkew;
    if (!over || host_.sessions(entry.tenant) != 0) {
      ++at;
      continue;
    }
    if (entry.ending) to_report_[at->first] = entry.serial;
    log::info("lease_gone", {{"lease", lease::hexadecimal(at->first)}, {"tenant", entry.tenant}});
    tenants_.remove_lease(entry.tenant);
    if (entry.ending) suspensions_.forget(at->first);
    at = entries_.erase(at);
  }
  forget_ended();
}

void Leases::forget_ended() {
  const Time now = host_.now();
  while (!ended_in_order_.empty() &&
         (now > ended_in_order_.front().second || ended_in_order_.size() > kMostEnded)) {
    ended_.erase(ended_in_order_.front().first);
    ended_in_order_.pop_front();
  }
}

void Leases::report(pool::NodeReport& out) {
  remove_finished();
  const auto add = [&](const std::string& id, size_t sessions, uint64_t serial) -> pool::LeaseUse& {
    pool::LeaseUse& use = *out.add_leases();
    use.set_lease(id);
    use.set_sessions(static_cast<uint32_t>(sessions));
    use.set_serial(serial);
    return use;
  };
  for (auto& [id, entry] : entries_) {
    const size_t sessions = host_.sessions(entry.tenant);
    if (sessions == 0) continue;
    pool::LeaseUse& use = add(id, sessions, entry.serial);
    use.set_cannot_move(std::exchange(entry.cannot_move, {}));
    if (host_.describe_breaks) host_.describe_breaks(entry.tenant, *use.mutable_breaks());
  }
  counters_.begin_report();
  // With its last counters, because the scheduler forgets a lease that has ended. The next report has the
  // rest.
  while (!to_report_.empty() && counters_.report(to_report_.begin()->first, out)) {
    const auto [id, serial] = *to_report_.begin();
    to_report_.erase(to_report_.begin());
    pool::LeaseUse& use = add(id, 0, serial);
    if (const auto ended = ended_.find(id); ended != ended_.end()) use.set_void_serial(ended->second);
  }
  counters_.report_others(out);
  suspensions_.report(out);
  for (const lease::PublicKey& key : keys_) out.add_key_ids(key.id());
}

void Leases::stop() {
  stopped_ = true;
  counters_.stop();
  for (auto& [id, entry] : entries_) entry.end.cancel();
}

void Leases::save(upgrade::Leases& to) const {
  to.set_boot(boot_);
  for (const auto& [id, entry] : entries_) {
    upgrade::Lease& lease = *to.add_leases();
    lease.set_id(id);
    lease.set_tenant(entry.tenant);
    lease.set_serial(entry.serial);
    lease.set_expires_ms(entry.expires.count());
    *lease.mutable_quota() = to_message(entry.quota);
    lease.mutable_gpus()->Add(entry.gpus.begin(), entry.gpus.end());
    lease.set_ending(entry.ending);
    lease.set_reason(entry.reason);
    lease.set_end_due(upgrade::to_ns(entry.end.expiry()));
    lease.set_moving(entry.moving);
    lease.set_cannot_move(entry.cannot_move);
    for (const std::string& label : entry.labels) lease.add_labels(label);
  }
  for (const auto& [id, until] : ended_in_order_) {
    upgrade::EndedLease& ended = *to.add_ended();
    ended.set_id(id);
    ended.set_serial(ended_.at(id));
    ended.set_until_ms(until.count());
  }
  for (const auto& [id, serial] : to_report_) {
    upgrade::EndedLease& ended = *to.add_to_report();
    ended.set_id(id);
    ended.set_serial(serial);
  }
  suspensions_.save(to);
  counters_.save(to);
}

void Leases::restore(const upgrade::Leases& from) {
  for (const upgrade::Lease& lease : from.leases()) {
    Entry& entry = entries_.try_emplace(lease.id(), context_).first->second;
    entry.tenant = lease.tenant();
    entry.serial = lease.serial();
    entry.expires = Time(lease.expires_ms());
    entry.quota = quota_of(lease.quota());
    entry.gpus.assign(lease.gpus().begin(), lease.gpus().end());
    entry.ending = lease.ending();
    entry.reason = lease.reason();
    entry.moving = lease.moving();
    entry.cannot_move = lease.cannot_move();
    entry.labels.assign(lease.labels().begin(), lease.labels().end());
    put_tenant(entry);
    if (entry.ending) await_end(lease.id(), entry, upgrade::steady(lease.end_due()));
  }
  for (const upgrade::EndedLease& ended : from.ended()) {
    ended_[ended.id()] = ended.serial();
    ended_in_order_.emplace_back(ended.id(), Time(ended.until_ms()));
  }
  for (const upgrade::EndedLease& ended : from.to_report()) to_report_[ended.id()] = ended.serial();
  suspensions_.restore(from);
  counters_.restore(from);
}

}  // namespace gpupool::server
