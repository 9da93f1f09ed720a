// Core: the operators' commands (pool-admin): drain, undrain, remove, trust, evict, move, quotas, policy,
// why.
#include <algorithm>

#include "common/text/names.h"
#include "common/text/units.h"
#include "protocol/lease/token.h"
#include "scheduler/core/core.h"
#include "scheduler/core/records.h"
#include "scheduler/placement/policy.h"

namespace gpupool::scheduler {
namespace {

Error unknown(const std::string& what) {
  return {ErrorCode::unavailable, what};
}

// Describes the latest ended lease for which `matches` holds; null if none is known.
template <class Matches>
std::optional<std::vector<std::string>> why_ended(const std::deque<EndedLease>& leases, Matches matches,
                                                  Time now) {
  const auto found = std::find_if(leases.rbegin(), leases.rend(), matches);
  if (found == leases.rend()) return std::nullopt;
  return std::vector<std::string>{
      "lease " + lease::hexadecimal(found->id) + " has ended: " + pool::Ended::Why_Name(found->why) + ", " +
          found->reason,
      "it ended " + std::to_string(std::max<Time>(0, now - found->at) / 1000) + " s ago"};
}

}  // namespace

Result<Node*> Core::known_node(const std::string& name) {
  const auto found = nodes_.find(name);
  if (found == nodes_.end() || found->second.forgotten()) return unknown("unknown node '" + name + "'");
  return &found->second;
}

Result<void> Core::drain(const std::string& name, const std::string& reason, bool evict,
                         std::optional<uint32_t> grace_ms, Time now, bool move) {
  const auto known = known_node(name);
  if (!known) return known.error();
  Node& node = **known;
  if (!std::exchange(node.drained, true)) node.drained_at = now;
  node.drained_because = reason;
  node.moves_away = move;
  node.evict_at = node.evict_notice_at = 0;
  dirty_nodes_.insert(name);
  note("node_drained", {{"node", name},
                        {"reason", reason},
                        {"leases", std::to_string(node.leases.size())},
                        {"move", move ? "yes" : "no"}});
  const uint32_t grace = grace_ms.value_or(policy_.grace_ms());
  if (evict && move) {
    node.evict_at = now + grace;
    node.evict_notice_at = node.evict_at - std::min(policy_.grace_ms(), grace / 2);
  } else if (evict) {
    for (const LeaseId& id : std::set<LeaseId>(node.leases))
      end(*leases_.find(id), pool::Ended::EVICTED, "node '" + name + "' is drained: " + reason, grace, now);
  }
  forget_failed_moves(node);
  check_node(node, now);
  dirty_ = true;
  return {};
}

// Lets moves of leases away from the node be tried again.
void Core::forget_failed_moves(Node& node) {
  for (const LeaseId& id : node.leases) {
    Lease& lease = *leases_.find(id);
    const size_t place = lease.ending ? lease.parts.size() : lease.place_on(node);
    if (place == lease.parts.size()) continue;
    LeasePart& part = lease.parts[place];
    if (!std::exchange(part.cannot_move, {}).empty()) dirty_leases_.insert(id);
    part.waits_because.clear();
    part.tried_at = 0;
  }
}

Result<void> Core::undrain(const std::string& name, Time now) {
  const auto known = known_node(name);
  if (!known) return known.error();
  Node& node = **known;
  node.drained = node.moves_away = false;
  node.drained_because.clear();
  node.drained_at = node.evict_at = node.evict_notice_at = 0;
  forget_failed_moves(node);
  node.distrust_reason.clear();
  node.flapping_until = 0;
  node.registrations.clear();
  impossible_.clear();
  dirty_nodes_.insert(name);
  note("node_undrained", {{"node", name}});
  check_node(node, now);
  return {};
}

Result<uint32_t> Core::remove_node(const std::string& name, Time now) {
  const auto known = known_node(name);
  if (!known) return known.error();
  Node& node = **known;
  if (node.stream != 0 && !node.silent) {
    return Error{ErrorCode::invalid, "node '" + name + "' is connected: drain it and stop its poold first"};
  }
  note("node_removed", {{"node", name}, {"leases", std::to_string(node.leases.size())}});
  const uint32_t leases = end_leases(node, "an operator has removed node '" + name + "'", now);
  node.removed_boot = node.boot();
  node_streams_.erase(node.stream);
  node.stream = 0;
  pool::Inventory none;
  none.set_node(name);
  take_inventory(node, none, now);
  node.drained = node.moves_away = false;
  node.drained_at = node.stopped_at = node.evict_at = node.evict_notice_at = 0;
  node.lost = false;
  node.distrust_reason.clear();
  dirty_nodes_.insert(name);
  return leases;
}

Result<void> Core::trust_gpu(const std::string& name, const std::string& uuid, Time now) {
  const auto known = known_node(name);
  if (!known) return known.error();
  if (!claims_.has(uuid, name)) {
    return Error{ErrorCode::invalid, "node '" + name + "' does not report GPU '" + brief_name(uuid) +
                                         "': use a UUID shown by pool-admin gpus"};
  }
  claims_.trust(uuid, name);
  const std::set<std::string> claimants = claims_.nodes_with(uuid);
  dirty_nodes_.insert(claimants.begin(), claimants.end());
  note("gpu_trusted", {{"node", name}, {"gpu", uuid}});
  judge_claims(uuid);
  for (const std::string& claimant : claimants) check_node(nodes_.at(claimant), now);
  return {};
}

Result<LeaseId> Core::evict(const std::string& text, const std::string& reason,
                            std::optional<uint32_t> grace_ms, Time now) {
  const auto lease = lease_called(text);
  if (!lease) return lease.error();
  end(*leases_.find(*lease), pool::Ended::EVICTED, reason.empty() ? "ended by an operator" : reason,
      grace_ms.value_or(policy_.grace_ms()), now);
  return *lease;
}

Result<LeaseId> Core::move(const std::string& text, const std::string& from, const std::string& to,
                           Time now) {
  const auto id = lease_called(text);
  if (!id) return id.error();
  Lease& lease = *leases_.find(*id);
  const auto cannot = [&](const std::string& why) {
    return Error{ErrorCode::invalid, "cannot move lease " + short_text(*id) + ": " + why};
  };
  if (lease.ending) return cannot("it is ending: " + lease.reason);
  if (lease.suspension) return cannot("it is suspended, or about to be");
  std::string nodes;
  for (const LeasePart& part : lease.parts) nodes += (nodes.empty() ? "" : ", ") + part.node->name();
  if (lease.move)
    return cannot("it is moving from node '" + lease.parts[lease.move->place].node->name() + "' to node '" +
                  lease.move->to.node->name() + "' already");
  if (lease.is_moving())
    return cannot("the sessions of its last move have not left node '" +
                  lease.leaving.back().part.node->name() + "' yet");
  if (from.empty() && lease.parts.size() > 1)
    return cannot("it is on several nodes (" + nodes + "): say which one it leaves (--from)");
  size_t place = 0;
  while (!from.empty() && place < lease.parts.size() && lease.parts[place].node->name() != from) ++place;
  if (place == lease.parts.size()) return cannot("it is not on node '" + from + "', but on " + nodes);
  const auto target = to.empty() ? Result<Node*>(nullptr) : known_node(to);
  if (!target) return target.error();
  auto placed = place_part(lease, lease.parts[place], *target);
  if (!placed) return cannot(placed.error().message);
  begin_move(lease, place, std::move(*placed), now);
  return *id;
}

Result<LeaseId> Core::lease_called(const std::string& text) const {
  std::optional<LeaseId> found;
  for (const auto& [id, lease] : leases_.all()) {
    if (text.empty() || !lease::hexadecimal(id).starts_with(text)) continue;
    if (found) return Error{ErrorCode::invalid, "several lease ids begin with '" + text + "'"};
    found = id;
  }
  if (!found) return unknown("unknown lease '" + text + "': it was never granted, or has ended");
  return *found;
}

Result<pool::TenantQuota> Core::set_quota(const std::string& name, const pool::TenantQuota& changes, Time) {
  const auto found = tenants_.find(name);
  if (found == tenants_.end()) return unknown("unknown tenant '" + name + "'");
  if (const auto wrong = check_quota(changes)) return Error{ErrorCode::invalid, *wrong};
  Tenant& tenant = found->second;
  if (!tenant.set) tenant.set.emplace();
  tenant.set->MergeFrom(changes);
  tenant.combine();
  effects_.writes.push_back({kQuotaPrefix + name, tenant.set->SerializeAsString()});
  note("quota_set", {{"tenant", name}});
  ++capacity_;
  dirty_ = places_changed_ = recheck_waiting_ = true;
  return tenant.quota;
}

Result<pool::TenantQuota> Core::clear_quota(const std::string& name, Time) {
  const auto found = tenants_.find(name);
  if (found == tenants_.end()) return unknown("unknown tenant '" + name + "'");
  found->second.set.reset();
  found->second.combine();
  effects_.writes.push_back({kQuotaPrefix + name, std::nullopt});
  note("quota_cleared", {{"tenant", name}});
  ++capacity_;
  dirty_ = places_changed_ = recheck_waiting_ = true;
  return found->second.quota;
}

Result<pool::Policy> Core::set_policy(const pool::Policy& changes, Time) {
  if (const auto wrong = check_policy(changes)) return Error{ErrorCode::invalid, *wrong};
  pool::Policy wanted = policy_;
  wanted.MergeFrom(changes);
  if (wanted.node_lost_ms() < 2 * wanted.heartbeat_ms())
    return Error{ErrorCode::invalid, "node-lost must be at least two heartbeats"};
  if (!placer_->set_policy(wanted.placement()))
    return Error{ErrorCode::invalid,
                 "unknown placement '" + wanted.placement() + "'; valid: " + placement::policy_names()};
  policy_ = wanted;
  effects_.writes.push_back({kPolicyKey, policy_.SerializeAsString()});
  note("policy_set", {{"placement", policy_.placement()}});
  ++capacity_;
  dirty_ = true;
  for (const auto& [name, node] : nodes_) answer(node);
  return policy_;
}

Result<std::vector<std::string>> Core::why(const std::string& id, Time now) {
  if (id.starts_with('q')) {
    for (const auto& [stream, place] : places()) {
      const WaitingRequest& waiter = queue_.all().at(stream);
      if (waiter.queue_id() != id) continue;
      return std::vector<std::string>{
          "place " + std::to_string(place) + " of " + std::to_string(queue_.size()),
          "in the queue for " + std::to_string((now - waiter.arrived) / 1000) + " s", explain(waiter)};
    }
    const auto granted = std::find_if(leases_.all().begin(), leases_.all().end(),
                                      [&](const auto& one) { return one.second.queue_id == id; });
    if (granted == leases_.all().end()) {
      if (auto over = why_ended(
              leases_.ended(), [&](const EndedLease& lease) { return lease.queue_id == id; }, now))
        return *std::move(over);
      return unknown("no request '" + id +
                     "' is waiting: its lease has ended, or it was cancelled or never made");
    }
    std::vector<std::string> lines = explain(granted->second, now);
    lines.insert(lines.begin(), "granted: lease " + lease::hexadecimal(granted->first));
    return lines;
  }
  const auto found = lease_called(id);
  if (found) return explain(leases_.all().at(*found), now);
  if (found.error().code == ErrorCode::unavailable && !id.empty()) {
    if (auto over = why_ended(
            leases_.ended(),
            [&](const EndedLease& lease) { return lease::hexadecimal(lease.id).starts_with(id); }, now))
      return *std::move(over);
  }
  return found.error();
}

}  // namespace gpupool::scheduler
