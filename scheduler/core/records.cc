#include "scheduler/core/records.h"

#include "protocol/lease/token.h"
#include "scheduler/core/core.h"
#include "scheduler/core/records.pb.h"

namespace gpupool::scheduler {
namespace {

void write_part(const LeasePart& part, PartRecord& out) {
  out.set_node(part.node->name());
  for (const auto& share : part.shares) {
    lease::Share& stored = *out.add_shares();
    stored.set_gpu_uuid(part.node->gpus[share.gpu].uuid);
    stored.set_compute_milli(share.amount.milli);
    stored.set_memory_bytes(share.amount.memory);
  }
  out.set_cpu_milli(static_cast<uint32_t>(part.host.cpu_milli));
  out.set_host_memory_bytes(part.host.memory);
  out.set_uncounted(!part.counted);
  out.set_cannot_move(part.cannot_move);
  out.set_last_serial(part.last_serial);
  out.set_recalled(part.recalled);
  out.set_unallocated(!part.allocated);
}

void write_suspension(const Lease& lease, LeaseRecord& record) {
  record.set_suspension_orders(lease.suspension_orders);
  record.set_cannot_suspend(lease.cannot_suspend);
  record.set_keeps_until_ms(lease.keeps_until);
  if (!lease.suspension) return;
  SuspensionRecord& suspension = *record.mutable_suspension();
  suspension.set_state(static_cast<SuspensionRecord::State>(lease.suspension->state));
  suspension.set_held(lease.suspension->held);
  suspension.set_preempted(lease.suspension->preempted);
  suspension.set_since_ms(lease.suspension->since);
  suspension.set_because(lease.suspension->because);
  suspension.set_reason(lease.suspension->reason);
}

void write_moves(const Lease& lease, LeaseRecord& record) {
  if (lease.move) {
    MoveRecord& move = *record.mutable_move();
    write_part(lease.move->to, *move.mutable_to());
    move.set_place(static_cast<uint32_t>(lease.move->place));
    move.set_since_ms(lease.move->since);
    move.set_because(lease.move->because);
  }
  for (const LeavingPart& one : lease.leaving) {
    LeavingRecord& leaving = *record.add_leaving();
    write_part(one.part, *leaving.mutable_part());
    leaving.set_place(static_cast<uint32_t>(one.place));
    leaving.set_back(one.back);
    leaving.set_since_ms(one.since);
    leaving.set_reason(one.reason);
  }
  for (const auto& [node, boot] : lease.left) {
    ProcessRecord& process = *record.add_left();
    process.set_node(node);
    process.set_boot(boot);
  }
}

}  // namespace

std::string lease_key(const LeaseId& id) {
  return kLeasePrefix + lease::hexadecimal(id);
}
std::string node_key(const std::string& name) {
  return kNodePrefix + name;
}

std::string lease_record(const Lease& lease) {
  LeaseRecord record;
  record.set_id(lease.id);
  record.set_tenant(lease.tenant);
  *record.mutable_request() = lease.request;
  for (const LeasePart& part : lease.parts) write_part(part, *record.add_parts());
  write_moves(lease, record);
  write_suspension(lease, record);
  write_usage(lease.usage, record);
  record.set_serial(lease.serial);
  record.set_granted_ms(lease.granted);
  record.set_to_device_bytes_per_second(lease.to_device_bytes_per_second);
  record.set_to_host_bytes_per_second(lease.to_host_bytes_per_second);
  record.set_sessions(lease.sessions);
  if (lease.ending) {
    record.set_ending(true);
    record.set_why(lease.why);
    record.set_reason(lease.reason);
    record.set_end_at_ms(lease.end_at);
  }
  return record.SerializeAsString();
}

std::string node_record(const Node& node) {
  NodeRecord record;
  *record.mutable_inventory() = node.inventory;
  record.set_drained(node.drained);
  record.set_drained_because(node.drained_because);
  record.set_removed_boot(node.removed_boot);
  record.set_drained_ms(node.drained_at);
  record.set_stopped_ms(node.stopped_at);
  record.set_moves_away(node.moves_away);
  record.set_evict_at_ms(node.evict_at);
  record.set_evict_notice_ms(node.evict_notice_at);
  for (const Gpu& gpu : node.gpus) {
    ClaimRecord& claim = *record.add_claims();
    claim.set_since_ms(gpu.claim.since);
    claim.set_trusted(gpu.claim.trusted);
  }
  return record.SerializeAsString();
}

Result<void> Core::restore(const std::vector<std::pair<std::string, std::string>>& stored, Time now) {
  const auto each = [&](std::string_view prefix, auto&& read) -> Result<void> {
    for (const auto& [key, value] : stored) {
      if (!key.starts_with(prefix)) continue;
      if (const Result<void> good = read(key.substr(prefix.size()), value); !good) {
        return Error{ErrorCode::invalid,
                     "the store's record '" + key + "' is invalid: " + good.error().message};
      }
    }
    return {};
  };
  const Error unreadable{ErrorCode::invalid, "it cannot be parsed"};
  Result<void> good = each(kPolicyKey, [&](const std::string&, const std::string& value) -> Result<void> {
    pool::Policy changes;
    if (!changes.ParseFromString(value) || check_policy(changes)) return unreadable;
    policy_.MergeFrom(changes);
    if (!placer_->set_policy(policy_.placement()))
      return Error{ErrorCode::invalid, "unknown placement '" + policy_.placement() + "'"};
    return {};
  });
  if (good) {
    good = each(kQuotaPrefix, [&](const std::string& name, const std::string& value) -> Result<void> {
      pool::TenantQuota changes;
      if (!changes.ParseFromString(value) || check_quota(changes)) return unreadable;
      tenant(name).set = changes;
      tenant(name).combine();
      return {};
    });
  }
  if (good)
    good = each(kSpendingPrefix, [&](const std::string& name, const std::string& value) -> Result<void> {
      if (!read_spending(value, tenant(name).spending)) return unreadable;
      return {};
    });
  if (good)
    good = each(kNodePrefix,
                [&](const std::string&, const std::string& value) { return restore_node(value, now); });
  if (good)
    good = each(kLeasePrefix,
                [&](const std::string&, const std::string& value) { return restore_lease(value, now); });
  if (good)
    good = each(kDefragmentationKey, [&](const std::string&, const std::string& value) {
      return restore_defragmentation(value, now);
    });
  for (auto& [name, node] : nodes_) changed(node, true);
  return good;
}

Result<void> Core::restore_node(const std::string& value, Time now) {
  NodeRecord record;
  if (!record.ParseFromString(value) || record.inventory().node().empty())
    return Error{ErrorCode::invalid, "it cannot be parsed"};
  Node& node = nodes_[record.inventory().node()];
  node.drained = record.drained();
  node.drained_because = record.drained_because();
  node.removed_boot = record.removed_boot();
  node.drained_at = record.drained_ms();
  node.stopped_at = record.stopped_ms();
  node.moves_away = record.moves_away();
  node.evict_at = record.evict_at_ms();
  node.evict_notice_at = record.evict_notice_ms();
  node.last_report = node.since = now;
  std::map<std::string, Claim> claims;
  for (int i = 0; i < std::min(record.claims_size(), record.inventory().gpus_size()); ++i) {
    claims[record.inventory().gpus(i).uuid()] = {.since = record.claims(i).since_ms(),
                                                 .trusted = record.claims(i).trusted()};
  }
  take_inventory(node, record.inventory(), 0, std::move(claims));
  return {};
}

// Allocates the shares of a stored part of a lease again, regardless of the node's condition. A share that
// does not fit means that the store is corrupt or was modified by another program.
Result<LeasePart> Core::restore_part(const PartRecord& stored) {
  const auto wrong = [](const std::string& why) { return Error{ErrorCode::invalid, why}; };
  const auto found = nodes_.find(stored.node());
  if (found == nodes_.end()) return wrong("unknown node '" + stored.node() + "'");
  Node& node = found->second;
  if (stored.shares().empty() || node.inventory.addresses().empty())
    return wrong("a part on node '" + node.name() + "' has no shares, or the node no address");
  LeasePart part{.node = &node, .shares = {}, .host = {stored.cpu_milli(), stored.host_memory_bytes()}};
  part.counted = !stored.uncounted();
  part.cannot_move = stored.cannot_move();
  part.last_serial = stored.last_serial();
  part.recalled = stored.recalled();
  part.allocated = !stored.unallocated();
  for (const lease::Share& share : stored.shares()) {
    Gpu* const gpu = node.find_gpu(share.gpu_uuid());
    if (!gpu) return wrong("node '" + node.name() + "' has no GPU '" + share.gpu_uuid() + "'");
    part.shares.push_back(
        {static_cast<uint32_t>(gpu - node.gpus.data()), {share.compute_milli(), share.memory_bytes()}});
    if (part.allocated) gpu->allocations.used += part.shares.back().amount;
    if (!gpu->allocations.used.within(gpu->allocations.total))
      return wrong("GPU '" + gpu->uuid + "' is allocated beyond its capacity");
  }
  if (part.allocated) node.host.used += part.host;
  if (!node.host.used.within(node.host.total))
    return wrong("node '" + node.name() + "' does not have this much CPU or memory");
  return part;
}

Result<void> Core::restore_moves(const LeaseRecord& record, Lease& lease) {
  const Error no_place{ErrorCode::invalid, "a move does not fit the lease's parts"};
  // Parts that replace each other have the same amounts.
  const auto fits = [&](const LeasePart& part, size_t place) {
    return place < lease.parts.size() && !lease.ending && !part.counted &&
           part.host == lease.parts[place].host &&
           std::equal(part.shares.begin(), part.shares.end(), lease.parts[place].shares.begin(),
                      lease.parts[place].shares.end(),
                      [](const auto& a, const auto& b) { return a.amount == b.amount; });
  };
  if (record.has_move()) {
    auto to = restore_part(record.move().to());
    if (!to) return to.error();
    if (!fits(*to, record.move().place())) return no_place;
    lease.move = LeaseMove{.to = std::move(*to),
                           .place = record.move().place(),
                           .since = record.move().since_ms(),
                           .timed_from = record.move().since_ms(),
                           .cannot_move = {},
                           .because = record.move().because()};
  }
  for (const LeavingRecord& stored : record.leaving()) {
    auto part = restore_part(stored.part());
    if (!part) return part.error();
    if (!fits(*part, stored.place())) return no_place;
    lease.leaving.push_back({.part = std::move(*part),
                             .place = stored.place(),
                             .back = stored.back(),
                             .since = stored.since_ms(),
                             .reason = stored.reason()});
  }
  for (const ProcessRecord& process : record.left()) lease.left.emplace_back(process.node(), process.boot());
  return {};
}

// Returns false if a lease that is not suspended has no shares, or the reverse.
bool Core::restore_suspension(const LeaseRecord& record, Lease& lease) {
  lease.suspension_orders = record.suspension_orders();
  lease.cannot_suspend = record.cannot_suspend();
  lease.keeps_until = record.keeps_until_ms();
  if (record.has_suspension()) {
    const SuspensionRecord& stored = record.suspension();
    lease.suspension = Suspension{.state = static_cast<Suspension::State>(stored.state()),
                                  .held = stored.held(),
                                  .preempted = stored.preempted(),
                                  .since = stored.since_ms(),
                                  .timed_from = stored.since_ms(),
                                  .because = stored.because(),
                                  .reason = stored.reason()};
  }
  return std::all_of(lease.parts.begin(), lease.parts.end(), [&](const LeasePart& part) {
    return lease.ending || part.allocated != lease.is_suspended();
  });
}

Result<void> Core::restore_lease(const std::string& value, Time now) {
  LeaseRecord record;
  if (!record.ParseFromString(value) || record.id().empty() || record.parts().empty())
    return Error{ErrorCode::invalid, "it cannot be parsed"};
  Lease lease;
  lease.id = record.id();
  lease.tenant = record.tenant();
  lease.request = record.request();
  lease.serial = record.serial();
  lease.granted = record.granted_ms();
  lease.to_device_bytes_per_second = record.to_device_bytes_per_second();
  lease.to_host_bytes_per_second = record.to_host_bytes_per_second();
  lease.sessions = record.sessions();
  lease.ending = record.ending();
  lease.why = record.why();
  lease.reason = record.reason();
  lease.end_at = record.end_at_ms();
  if (!read_usage(record, lease.usage)) return Error{ErrorCode::invalid, "its usage is invalid"};
  for (const PartRecord& stored : record.parts()) {
    auto part = restore_part(stored);
    if (!part) return part.error();
    lease.parts.push_back(std::move(*part));
  }
  if (const auto moves = restore_moves(record, lease); !moves) return moves;
  if (!restore_suspension(record, lease))
    return Error{ErrorCode::invalid, "its state does not fit its parts"};
  std::set<const Node*> nodes;
  bool distinct = true;
  lease.for_each_part([&](const LeasePart& part) { distinct = nodes.insert(part.node).second && distinct; });
  if (!distinct) return Error{ErrorCode::invalid, "several of its parts are on one node"};
  index_lease(std::move(lease), now);
  return {};
}

std::optional<std::string> Core::defragmentation_record() const {
  if (!defragmentation_ && defragmentation_spent_.empty()) return std::nullopt;
  DefragmentationRecord record;
  if (defragmentation_) {
    record.set_tenant(defragmentation_->tenant);
    *record.mutable_request() = defragmentation_->request;
    for (const GpuSlot& slot : defragmentation_->place) {
      SlotRecord& stored = *record.add_place();
      stored.set_node(slot.node->name());
      stored.set_gpu_uuid(slot.node->gpus[slot.gpu].uuid);
    }
    for (const Defragmentation::Step& step : defragmentation_->steps) {
      StepRecord& stored = *record.add_steps();
      stored.set_lease(step.lease);
      stored.set_from(step.from->name());
    }
    record.set_since_ms(defragmentation_->since);
  }
  for (const DefragmentationSpent& one : defragmentation_spent_) {
    SpentRecord& stored = *record.add_spent();
    stored.set_at_ms(one.at);
    stored.set_moves(one.moves);
    stored.set_bytes(one.bytes);
  }
  return record.SerializeAsString();
}

// The request comes back with its client. A place that no longer exists is forgotten; its moves go on.
Result<void> Core::restore_defragmentation(const std::string& value, Time now) {
  DefragmentationRecord record;
  if (!record.ParseFromString(value)) return Error{ErrorCode::invalid, "it cannot be parsed"};
  for (const SpentRecord& one : record.spent())
    defragmentation_spent_.push_back({one.at_ms(), one.moves(), one.bytes()});
  if (record.tenant().empty() || record.place().empty() || check_request(record.request())) return {};
  Defragmentation begun;
  begun.tenant = record.tenant();
  begun.request = record.request();
  begun.hold_until = now + policy_.hold_ms();
  begun.since = record.since_ms();
  const Demand demand(begun.request);
  std::set<std::string> distinct;
  for (const SlotRecord& stored : record.place()) {
    const auto node = nodes_.find(stored.node());
    if (node == nodes_.end()) return {};
    const Gpu* const gpu = node->second.find_gpu(stored.gpu_uuid());
    if (!gpu || !demand.suits(*gpu) || !distinct.insert(gpu->uuid).second) return {};
    begun.place.push_back({&node->second, static_cast<uint32_t>(gpu - node->second.gpus.data())});
  }
  if (begun.place.size() != demand.gpus) return {};
  for (const StepRecord& stored : record.steps()) {
    const auto node = nodes_.find(stored.from());
    if (node == nodes_.end()) return {};
    begun.steps.push_back({stored.lease(), &node->second});
  }
  defragmentation_ = std::move(begun);
  return {};
}

}  // namespace gpupool::scheduler
