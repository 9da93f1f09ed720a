#include "scheduler/core/core.h"

#include "protocol/lease/token.h"
#include "scheduler/core/records.h"

namespace gpupool::scheduler {
namespace {

constexpr Time kPlacesEvery = 200;

}  // namespace

Core::Core(MakeId make_id, const MakePlacer& make_placer, Time now)
    : make_id_(std::move(make_id)), started_(now), last_tick_(now), placer_(make_placer(nodes_)) {}

void Core::configure(const std::vector<ConfiguredTenant>& tenants, Prices prices, Time now) {
  prices_ = std::move(prices);
  for (auto& [name, tenant] : tenants_) {
    tenant.configured = false;
    tenant.windows.clear();
    tenant.budgets.clear();
  }
  for (const ConfiguredTenant& configured : tenants) {
    Tenant& known = tenant(configured.name);
    known.configured = true;
    known.as_configured = default_quota();
    known.as_configured.MergeFrom(configured.quota);
    known.windows = configured.windows;
    known.budgets = configured.budgets;
    known.windows_applied.clear();
    known.combine();
    known.count(now);
  }
  check_windows(now);
  check_budgets(now);
  ++capacity_;
  dirty_ = recheck_waiting_ = true;
}

void Core::end_removed_tenants(Time now) {
  const auto reason_for = [&](const std::string& name) {
    return tenants_.at(name).configured
               ? ""
               : "tenant '" + name + "' was removed from the scheduler's configuration";
  };
  std::vector<std::pair<LeaseId, std::string>> ending;
  for (const auto& [id, lease] : leases_.all()) {
    if (std::string why = reason_for(lease.tenant); !why.empty()) ending.emplace_back(id, std::move(why));
  }
  for (const auto& [id, why] : ending) {
    if (Lease* const lease = leases_.find(id)) end(*lease, pool::Ended::EVICTED, why, 0, now);
  }
  std::vector<std::pair<Stream, std::string>> refused;
  for (const auto& [stream, waiter] : queue_.all()) {
    if (std::string why = reason_for(waiter.tenant); !why.empty())
      refused.emplace_back(stream, std::move(why));
  }
  for (const auto& [stream, why] : refused) revoke(stream, why, now);
}

Tenant& Core::tenant(const std::string& name) {
  Tenant& tenant = tenants_[name];
  if (tenant.name.empty()) {
    tenant.name = name;
    tenant.as_configured = default_quota();
    tenant.combine();
  }
  return tenant;
}

void Core::refuse(Stream stream, Refusal::Kind kind, const std::string& reason) {
  effects_.clients.push_back({stream, Refusal{kind, reason}, true});
}

void Core::tick(Time now) {
  notice_pause(now);
  for (auto& [name, node] : nodes_) check_node(node, now);
  check_moves(now);
  check_suspensions(now);
  while (Lease* const lease = leases_.next_due(now)) due(*lease, now);
  check_followers(now);
  check_windows(now);
  tick_usage(now);
  settled_ = settled_ || settled(now);
  if (settled_ && std::exchange(recheck_waiting_, false)) refuse_impossible();
  tick_defragmentation(now);
  if (places_changed_ && now >= places_sent_at_ + kPlacesEvery) send_places(now);
}

Effects Core::take(Time now) {
  for (const LeaseId& id : dirty_leases_) {
    const Lease* const lease = leases_.find(id);
    effects_.writes.push_back({lease_key(id), lease ? std::optional(lease_record(*lease)) : std::nullopt});
  }
  dirty_leases_.clear();
  for (const std::string& name : dirty_nodes_) {
    const auto node = nodes_.find(name);
    effects_.writes.push_back(
        {node_key(name), node == nodes_.end() ? std::nullopt : std::optional(node_record(node->second))});
  }
  dirty_nodes_.clear();
  for (const std::string& name : std::exchange(dirty_spending_, {}))
    effects_.writes.push_back({kSpendingPrefix + name, spending_record(tenants_.at(name).spending)});
  if (std::exchange(dirty_defragmentation_, false))
    effects_.writes.push_back({kDefragmentationKey, defragmentation_record()});
  for (const std::string& name : to_answer_) {
    const auto node = nodes_.find(name);
    if (node != nodes_.end() && node->second.stream != 0)
      effects_.nodes.push_back({node->second.stream, orders(node->second, now), {}});
    if (node != nodes_.end()) node->second.counters_recorded.clear();
  }
  to_answer_.clear();
  return std::exchange(effects_, {});
}

}  // namespace gpupool::scheduler
