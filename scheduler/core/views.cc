// Core: the state shown to operators (pool-admin, metrics, web page).
#include <algorithm>

#include "protocol/lease/token.h"
#include "scheduler/core/core.h"

namespace gpupool::scheduler {
namespace {

using pool::NodeState;

Time since(const Node& node, NodeState::Condition condition) {
  if (condition == NodeState::STOPPED) return node.stopped_at;
  return condition == NodeState::DRAINED && node.drained_at != 0 ? node.drained_at : node.since;
}

void view(const LeasePart& part, pool::LeasePart& out) {
  out.set_node(part.node->name());
  for (const auto& share : part.shares) {
    lease::Share& of = *out.add_shares();
    of.set_gpu_uuid(part.node->gpus[share.gpu].uuid);
    of.set_compute_milli(share.amount.milli);
    of.set_memory_bytes(share.amount.memory);
  }
  out.set_sessions(part.sessions);
  *out.mutable_breaks() = part.breaks;
  out.set_cpu_milli(static_cast<uint32_t>(part.host.cpu_milli));
  out.set_host_memory_bytes(part.host.memory);
  out.set_unallocated(!part.allocated);
}

void view_suspension(const Lease& lease, pool::LeaseState& out) {
  using pool::LeaseStandstill;
  out.set_keeps_until_ms(lease.keeps_until);
  if (lease.ending || (!lease.suspension && lease.cannot_suspend.empty())) return;
  LeaseStandstill& view = *out.mutable_suspension();
  if (!lease.suspension) {
    view.set_state(LeaseStandstill::FAILED);
    view.set_reason(lease.cannot_suspend);
    return;
  }
  const Suspension& from = *lease.suspension;
  view.set_state(static_cast<LeaseStandstill::State>(from.state));
  view.set_held(from.held);
  view.set_preempted(from.preempted);
  view.set_since_ms(from.since);
  view.set_because(from.because);
  view.set_reason(from.reason);
  for (const LeasePart& part : lease.parts) {
    view.set_bytes(view.bytes() + part.suspended.bytes());
    view.set_sessions(view.sessions() + part.suspended.sessions());
    const bool tries = from.state != Suspension::State::suspended && !part.suspended.reason().empty();
    if (tries && part.suspended.number() == lease.suspension_orders)
      view.set_reason("node '" + part.node->name() + "': " + part.suspended.reason());
  }
}

// Returns the state of the part of a lease that is on this node and that programs use, as far as it concerns
// moves; null if it does not move and is not to.
std::optional<pool::LeaseMove::State> move_state(const Lease& lease, size_t place) {
  const LeasePart& part = lease.parts[place];
  if (lease.ending) return std::nullopt;
  if (lease.moves_from(place)) return pool::LeaseMove::MOVING;
  if (!part.cannot_move.empty()) return pool::LeaseMove::FAILED;
  if (part.node->moves_away && !part.waits_because.empty()) return pool::LeaseMove::WAITING;
  return std::nullopt;
}

void view_moves(const Lease& lease, pool::LeaseState& out) {
  for (size_t place = 0; place < lease.parts.size(); ++place) {
    const LeasePart& part = lease.parts[place];
    const auto state = move_state(lease, place);
    if (!state) continue;
    pool::LeaseMove& move = *out.add_moves();
    move.set_state(*state);
    move.set_from(part.node->name());
    move.set_reason(*state == pool::LeaseMove::FAILED ? part.cannot_move : part.waits_because);
    if (*state != pool::LeaseMove::MOVING) continue;
    move.set_to(lease.move->to.node->name());
    move.set_since_ms(lease.move->since);
    move.set_reason(lease.move->cannot_move);
    view(lease.move->to, *move.mutable_part());
  }
  for (const LeavingPart& one : lease.leaving) {
    pool::LeaseMove& move = *out.add_moves();
    move.set_state(one.back ? pool::LeaseMove::BACK : pool::LeaseMove::LEAVING);
    move.set_from(one.part.node->name());
    move.set_to(lease.parts[one.place].node->name());
    move.set_since_ms(one.since);
    move.set_reason(one.reason + (one.part.cannot_move.empty() ? "" : "; " + one.part.cannot_move));
    view(one.part, *move.mutable_part());
  }
}

void view(const Node& node, NodeState& out) {
  out.set_name(node.name());
  const auto [condition, because] = node.condition();
  out.set_condition(condition);
  out.set_because(because);
  out.set_since_ms(since(node, condition));
  out.set_drained(node.drained);
  out.set_moves_away(node.moves_away);
  out.set_evict_at_ms(node.evict_at);
  *out.mutable_addresses() = node.inventory.addresses();
  out.set_rack(node.inventory.rack());
  out.set_zone(node.inventory.zone());
  out.set_version(node.inventory.version());
  out.set_heard_ms(node.has_reported ? node.last_report : 0);
  out.set_clock_ahead_ms(node.clock_ahead);
  out.set_leases(static_cast<uint32_t>(node.leases.size()));
  out.set_cpu_milli(static_cast<uint32_t>(node.host.total.cpu_milli));
  out.set_cpu_milli_leased(static_cast<uint32_t>(node.host.used.cpu_milli));
  out.set_host_memory_bytes(node.host.total.memory);
  out.set_host_memory_bytes_leased(node.host.used.memory);
  if (node.suspension_room) *out.mutable_suspension_room() = *node.suspension_room;
  for (const Gpu& gpu : node.gpus) {
    pool::PoolGpu& view = *out.add_gpus();
    view.set_node(node.name());
    view.set_index(static_cast<uint32_t>(out.gpus_size() - 1));
    view.set_uuid(gpu.uuid);
    view.set_model(gpu.model);
    view.set_memory_bytes(gpu.allocations.total.memory);
    view.set_compute_milli_leased(gpu.allocations.used.milli);
    view.set_memory_bytes_leased(gpu.allocations.used.memory);
    const Amount free = less(gpu.allocations.total, gpu.allocations.used);
    view.set_compute_milli_reserved(std::min(free.milli, gpu.allocations.reserved.milli));
    view.set_memory_bytes_reserved(std::min(free.memory, gpu.allocations.reserved.memory));
    view.set_memory_used_bytes(gpu.use.memory_used_bytes());
    view.set_gpu_nanoseconds(gpu.use.gpu_nanoseconds());
    view.set_withheld_because(gpu.withheld_because);
  }
}

void view(const Lease& lease, pool::LeaseState& out) {
  out.set_id(lease::hexadecimal(lease.id));
  out.set_tenant(lease.tenant);
  out.set_priority(lease.request.priority());
  out.set_mode(lease.request.mode());
  for (const LeasePart& part : lease.parts) view(part, *out.add_parts());
  view_moves(lease, out);
  view_suspension(lease, out);
  out.set_granted_ms(lease.granted);
  out.set_serial(lease.serial);
  out.set_held(lease.holder != 0);
  if (lease.holder == 0 && !lease.ending) out.set_hold_until_ms(lease.deadline);
  out.set_ending(lease.ending);
  if (lease.ending) {
    out.set_end(lease.why);
    out.set_end_reason(lease.reason);
    out.set_end_at_ms(lease.end_at);
  }
  out.set_program(lease.request.program());
  out.set_host(lease.request.host());
  out.set_pid(lease.request.pid());
  *out.mutable_labels() = lease.request.labels();
}

}  // namespace

std::pair<NodeState::Condition, std::string> Node::condition() const {
  if (stopped_at != 0) return {NodeState::STOPPED, "poold was shut down"};
  if (lost) return {NodeState::LOST, "no heartbeat for too long"};
  if (silent) return {NodeState::SILENT, has_reported ? "heartbeats missing" : "not registered yet"};
  if (std::string why = fence(); !why.empty()) return {NodeState::FENCED, std::move(why)};
  if (drained) return {NodeState::DRAINED, drained_because};
  if (!ready) return {NodeState::NOT_READY, not_ready_because};
  const auto is_withheld = [](const Gpu& gpu) { return gpu.allocations.withheld; };
  const auto withheld = std::count_if(gpus.begin(), gpus.end(), is_withheld);
  if (withheld == 0) return {NodeState::OPEN, ""};
  const std::string& first = std::find_if(gpus.begin(), gpus.end(), is_withheld)->withheld_because;
  return {NodeState::OPEN,
          (withheld == 1 ? "" : std::to_string(withheld) + " of its GPUs get no leases; ") + first};
}

void Core::count_moves(const Node& node, NodeState& out) const {
  uint32_t arriving = 0, leaving = 0, waiting = 0, failed = 0, suspended = 0;
  for (const LeaseId& id : node.leases) {
    const Lease& lease = leases_.all().at(id);
    const size_t place = lease.place_on(node);
    suspended += lease.is_suspended();
    if (place == lease.parts.size()) {
      const bool arrives = lease.move && lease.move->to.node == &node;
      ++(arrives ? arriving : leaving);
      continue;
    }
    const auto state = move_state(lease, place);
    leaving += state == pool::LeaseMove::MOVING;
    waiting += node.moves_away && state == pool::LeaseMove::WAITING;
    failed += node.moves_away && state == pool::LeaseMove::FAILED;
  }
  out.set_leases_arriving(arriving);
  out.set_leases_leaving(leaving);
  out.set_leases_to_move(waiting);
  out.set_leases_not_moved(failed);
  out.set_leases_suspended(suspended);
}

Result<pool::NodeState> Core::view_node(const std::string& name) const {
  const auto found = nodes_.find(name);
  if (found == nodes_.end() || found->second.forgotten())
    return Error{ErrorCode::unavailable, "unknown node '" + name + "'"};
  NodeState state;
  view(found->second, state);
  count_moves(found->second, state);
  return state;
}

Result<pool::LeaseState> Core::view_lease(const LeaseId& id) const {
  const Lease* const found = leases_.find(id);
  if (!found) return Error{ErrorCode::unavailable, "unknown lease"};
  pool::LeaseState state;
  view(*found, state);
  return state;
}

pool::PoolState Core::view_pool() const {
  pool::PoolState state;
  uint32_t nodes = 0, open = 0, gpus = 0, withheld = 0;
  uint64_t milli = 0, memory = 0, milli_leased = 0, memory_leased = 0;
  for (const auto& [name, node] : nodes_) {
    if (node.forgotten()) continue;
    ++nodes;
    open += node.open();
    gpus += static_cast<uint32_t>(node.gpus.size());
    for (const Gpu& gpu : node.gpus) {
      withheld += gpu.allocations.withheld;
      if (!node.silent) {
        milli += gpu.allocations.total.milli;
        memory += gpu.allocations.total.memory;
      }
      milli_leased += gpu.allocations.used.milli;
      memory_leased += gpu.allocations.used.memory;
    }
  }
  state.set_started_ms(started_);
  state.set_nodes(nodes);
  state.set_nodes_open(open);
  state.set_gpus(gpus);
  state.set_gpus_withheld(withheld);
  state.set_leases(static_cast<uint32_t>(leases_.all().size()));
  state.set_leases_ending(static_cast<uint32_t>(std::count_if(
      leases_.all().begin(), leases_.all().end(), [](const auto& one) { return one.second.ending; })));
  state.set_leases_suspended(
      static_cast<uint32_t>(std::count_if(leases_.all().begin(), leases_.all().end(),
                                          [](const auto& one) { return one.second.is_suspended(); })));
  state.set_waiting(static_cast<uint32_t>(queue_.size()));
  state.set_compute_milli(milli);
  state.set_compute_milli_leased(milli_leased);
  state.set_memory_bytes(memory);
  state.set_memory_bytes_leased(memory_leased);
  *state.mutable_counters() = counters_;
  for (const auto& [why, leases] : ended_) {
    pool::EndedCount& count = *state.mutable_counters()->add_ended();
    count.set_why(static_cast<pool::Ended::Why>(why));
    count.set_leases(leases);
  }
  return state;
}

void Core::view_nodes(google::protobuf::RepeatedPtrField<NodeState>& out) const {
  std::map<std::pair<const Node*, uint32_t>, uint32_t> leases;  // by GPU
  for (const auto& [id, lease] : leases_.all()) {
    lease.for_each_part([&](const LeasePart& part) {
      for (const auto& share : part.shares) leases[{part.node, share.gpu}] += part.allocated;
    });
  }
  for (const auto& [name, node] : nodes_) {
    if (node.forgotten()) continue;
    NodeState& state = *out.Add();
    view(node, state);
    count_moves(node, state);
    for (pool::PoolGpu& gpu : *state.mutable_gpus()) {
      const auto found = leases.find({&node, gpu.index()});
      if (found != leases.end()) gpu.set_leases(found->second);
    }
  }
}

void Core::view_leases(google::protobuf::RepeatedPtrField<pool::LeaseState>& out) const {
  std::vector<const Lease*> all;
  for (const auto& [id, lease] : leases_.all()) all.push_back(&lease);
  std::sort(all.begin(), all.end(), [](const Lease* a, const Lease* b) {
    return std::tie(a->granted, a->id) < std::tie(b->granted, b->id);
  });
  for (const Lease* const lease : all) view(*lease, *out.Add());
}

void Core::view_queue(google::protobuf::RepeatedPtrField<pool::Waiting>& out) const {
  for (const auto& [stream, place] : places()) {
    const WaitingRequest& waiter = queue_.all().at(stream);
    pool::Waiting& view = *out.Add();
    view.set_id(waiter.queue_id());
    view.set_place(place);
    view.set_tenant(waiter.tenant);
    view.set_since_ms(waiter.arrived);
    *view.mutable_request() = waiter.request;
    view.mutable_request()->clear_id();  // the id authorizes taking the request over
    view.set_why(waiter.sent_why.empty() ? "not evaluated yet" : waiter.sent_why);
    view.set_head(stream == head_);
  }
}

void Core::view_tenants(google::protobuf::RepeatedPtrField<pool::TenantState>& out, Time now) const {
  for (const auto& [name, tenant] : tenants_) {
    if (!tenant.configured && tenant.leases + tenant.waiting == 0) continue;
    pool::TenantState& view = *out.Add();
    view.set_name(name);
    view.set_configured(tenant.configured);
    *view.mutable_quota() = tenant.quota;
    view.set_quota_set(tenant.set.has_value());
    view.set_leases(tenant.leases);
    view.set_waiting(tenant.waiting);
    view.set_compute_milli(tenant.milli);
    view.set_memory_bytes(tenant.memory);
    view.set_dominant_share(tenant.share(total_));
    view.set_granted(tenant.granted);
    Tenant until_now = tenant;
    until_now.count(now);
    view.set_gpu_milli_seconds(until_now.milli_ms / 1000);
    view_budgets(tenant, now, view);
  }
}

}  // namespace gpupool::scheduler
