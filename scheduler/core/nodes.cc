// Core: registration of nodes, heartbeats, fencing and loss.
#include "common/text/names.h"
#include "common/text/printable.h"
#include "protocol/lease/token.h"
#include "scheduler/core/core.h"
#include "scheduler/core/inventory.h"

namespace gpupool::scheduler {
namespace {

constexpr size_t kFlappingRegistrations = 6;  // registrations within kMinute: the node is flapping
constexpr Time kMinute = 60'000;
constexpr int64_t kClockTolerance = 5'000;  // milliseconds
constexpr int kSilentAfter = 3;             // missed heartbeats
constexpr Time kPause = 2'000;  // a longer gap between ticks means that this process was suspended
constexpr int kMaxReportedLeases = 65'536;

}  // namespace

void Core::register_node(Stream stream, const pool::NodeReport& first, Time now) {
  const pool::Inventory& inventory = first.inventory();
  const auto refuse_node = [&](Refusal::Kind kind, const std::string& why) {
    note("node_refused", {{"node", brief_name(inventory.node())}, {"reason", why}}, Note::Level::warning);
    effects_.nodes.push_back({stream, {}, Refusal{kind, why}});
  };
  if (const auto wrong = check_inventory(inventory))
    return refuse_node(Refusal::Kind::invalid, "the inventory: " + *wrong);
  Node& node = nodes_[inventory.node()];
  const bool same_process = node.boot() == inventory.boot();
  if (node.stream != 0 && !same_process && !node.silent && node.stopped_at == 0)
    return refuse_node(Refusal::Kind::busy, "another poold is registered as node '" + node.name() +
                                                "'; give each host its own --pool-name");
  if (node.stream != 0) {
    effects_.nodes.push_back(
        {node.stream, {}, Refusal{Refusal::Kind::busy, "replaced by another connection of the same poold"}});
    node_streams_.erase(node.stream);
  }
  if (same_process) {
    if (const auto why = contradiction(node.inventory, inventory))
      node.distrust_reason = *why;
    else if (node.distrust_reason.empty() &&
             node.inventory.SerializeAsString() != inventory.SerializeAsString()) {
      node.inventory = inventory;  // fields that may change, such as addresses
      dirty_nodes_.insert(node.name());
    }
  } else {
    end_leases(node, "node '" + inventory.node() + "' was restarted", now);
    take_inventory(node, inventory, now);
    node.distrust_reason.clear();
    if (!node.removed()) node.removed_boot.clear();
    dirty_nodes_.insert(node.name());
  }
  node.stream = stream;
  node_streams_[stream] = node.name();
  node.registrations.push_back(now);
  while (node.registrations.front() < now - kMinute) node.registrations.pop_front();
  if (node.registrations.size() >= kFlappingRegistrations) node.flapping_until = now + kMinute;
  note("node_attends",
       {{"node", node.name()}, {"gpus", std::to_string(node.gpus.size())}, {"version", inventory.version()}});
  take_report(node, first, now);
}

void Core::report(Stream stream, const pool::NodeReport& report, Time now) {
  const auto found = node_streams_.find(stream);
  if (found != node_streams_.end()) take_report(nodes_.at(found->second), report, now);
}

void Core::take_report(Node& node, const pool::NodeReport& report, Time now) {
  node.last_report = now;
  node.has_reported = true;
  node.silent = false;
  if (node.lost) {
    set_lost(node, false, now);
    note("node_back", {{"node", node.name()}});
  }
  if (const Time stopped = report.leaving() ? now : 0; std::exchange(node.stopped_at, stopped) != stopped)
    dirty_nodes_.insert(node.name());
  node.ready = report.ready();
  node.not_ready_because = report.not_ready_because();
  const auto& keys = report.key_ids();
  node.lacks_signing_key =
      !key_id_.empty() && !keys.empty() && std::find(keys.begin(), keys.end(), key_id_) == keys.end();
  const int64_t ahead = report.now_ms() - now;
  const bool skewed = std::abs(ahead) > kClockTolerance;
  if (skewed && std::abs(node.clock_ahead) <= kClockTolerance) {
    note("clock_skew", {{"node", node.name()}, {"ahead_ms", std::to_string(ahead)}}, Note::Level::warning);
  }
  node.clock_ahead = ahead;
  for (int i = 0; i < report.gpus_size() && i < static_cast<int>(node.gpus.size()); ++i) {
    for (Gpu& gpu : node.gpus) {
      if (gpu.uuid == report.gpus(i).uuid()) gpu.use = report.gpus(i);
    }
  }
  node.suspension_room.reset();
  if (report.has_suspension_room()) node.suspension_room = report.suspension_room();
  take_counters(node, report, now);  // before a lease that has ended is forgotten
  take_uses(node, report, now);
  take_suspensions(node, report, now);
  check_node(node, now);
  answer(node);
}

void Core::take_uses(Node& node, const pool::NodeReport& report, Time now) {
  for (const LeaseId& id : node.leases) {
    LeasePart& part = *leases_.find(id)->part_on(node);
    part.sessions = 0;
    part.breaks.Clear();
  }
  node.unknown_leases.clear();
  for (int i = 0; i < report.leases_size() && i < kMaxReportedLeases; ++i) {
    const pool::LeaseUse& use = report.leases(i);
    Lease* const lease = leases_.find(use.lease());
    if (!lease || !node.leases.contains(use.lease())) {
      if (use.sessions() > 0 && use.lease().size() == lease::kIdBytes)
        node.unknown_leases.insert(use.lease());
      continue;
    }
    // A token is sent only after its serial has been stored, so a higher serial is a forgery or an error.
    if (use.serial() > lease->serial)
      node.distrust_reason =
          "it reported a token of lease " + lease::hexadecimal(use.lease()) + " that was never issued";
    LeasePart& part = *lease->part_on(node);
    part.sessions = use.sessions();
    part.breaks = use.breaks();
    if (lease->moves_from(lease->place_on(node)))
      lease->move->cannot_move = printable_message(use.cannot_move());
    else if (lease->leaving_from(node))
      part.cannot_move = printable_message(use.cannot_move());
    // The order was given again with a later serial, or the lease ends: the node will answer that, too.
    const uint64_t last = lease->ending ? lease->serial : part.last_serial;
    const bool is_late = use.void_serial() != 0 && use.void_serial() < last;
    if (use.sessions() == 0 && !is_late) lease_left(*lease, node, now);
  }
}

void Core::node_disconnected(Stream stream, Time now) {
  notice_pause(now);
  const auto found = node_streams_.find(stream);
  if (found == node_streams_.end()) return;
  Node& node = nodes_.at(found->second);
  node_streams_.erase(found);
  node.stream = 0;
  node.silent = true;
  if (node.stopped_at != 0)
    note("node_stopped", {{"node", node.name()}});
  else
    note("node_cut", {{"node", node.name()}}, Note::Level::warning);
  check_node(node, now);
}

// Extends all timeouts by the time during which this process did not run (suspended machine, starved
// process): missing heartbeats of that time are not the nodes' fault.
void Core::notice_pause(Time now) {
  const Time away = now - std::exchange(last_tick_, now);
  if (away <= kPause) return;
  note("was_stopped", {{"ms", std::to_string(away)}}, Note::Level::warning);
  for (auto& [name, node] : nodes_) node.last_report = std::min(now, node.last_report + away);
  for (auto& [id, lease] : leases_.all()) {
    if (lease.holder == 0 && !lease.ending && lease.deadline != 0)
      leases_.set_deadline(lease, std::min(lease.deadline + away, now + policy_.hold_ms()));
    if (lease.move) lease.move->timed_from += away;
    if (lease.suspension) lease.suspension->timed_from += away;
  }
}

// Leases are not charged for their parts on lost nodes.
void Core::set_lost(Node& node, bool lost, Time now) {
  for (const LeaseId& id : node.leases) accrue(*leases_.find(id), now);
  node.lost = lost;
}

// Updates the node's condition from the current time and its last report: silent, lost, fenced, open.
void Core::check_node(Node& node, Time now) {
  if (node.forgotten()) return;
  if (now > node.last_report + kSilentAfter * int64_t{policy_.heartbeat_ms()}) node.silent = true;
  if (node.flapping_until <= now) node.flapping_until = 0;
  if (!node.lost && now > node.last_report + policy_.node_lost_ms()) {
    set_lost(node, true, now);
    counters_.set_nodes_lost(counters_.nodes_lost() + 1);
    note("node_lost", {{"node", node.name()}, {"leases", std::to_string(node.leases.size())}},
         Note::Level::warning);
    const std::string reason =
        "node '" + node.name() + (node.stopped_at != 0 ? "' was stopped" : "' was lost (no heartbeat)");
    for (const LeaseId& id : std::set<LeaseId>(node.leases))
      lose_part(*leases_.find(id), node, reason, false, now);
  }
  evict_rest(node, now);
  const std::string fence = node.fence();
  if (fence != node.sent_fence) {
    if (!fence.empty()) {
      counters_.set_nodes_fenced(counters_.nodes_fenced() + 1);
      note("node_fenced", {{"node", node.name()}, {"reason", fence}}, Note::Level::warning);
    } else {
      note("node_unfenced", {{"node", node.name()}});
    }
    node.sent_fence = fence;
    answer(node);
  }
  auto [condition, because] = node.condition();
  if (condition != node.shown) {
    node.since = now;
    dirty_ = true;  // suspended leases are resumed on drained nodes, too
    impossible_.clear();
  }
  // The reasons shown for waiting requests name the condition and its cause.
  if (condition != node.shown || because != node.shown_because) places_changed_ = true;
  node.shown = condition;
  node.shown_because = std::move(because);
  if (node.open() != node.was_open) {
    node.was_open = node.open();
    changed(node, node.was_open);
  }
}

// Informs the placer of a change of the node's inventory, free resources or open state.
void Core::changed(Node& node, bool more_free) {
  placer_->changed(node);
  if (more_free) ++capacity_;
  dirty_ = places_changed_ = true;
}

// Frees the node's parts of all leases: its poold process is gone, and its sessions with it. Returns the
// number of leases that end: all but those that can go on with another part.
uint32_t Core::end_leases(Node& node, const std::string& reason, Time now) {
  uint32_t ended = 0;
  for (const LeaseId& id : std::set<LeaseId>(node.leases)) {
    lose_part(*leases_.find(id), node, reason, true, now);
    const Lease* const left = leases_.find(id);
    ended += !left || left->ending;
  }
  return ended;
}

// Replaces the inventory of a node without leases. `claims` are the claims restored from the store; a GPU
// that the node had before keeps its claim.
void Core::take_inventory(Node& node, const pool::Inventory& inventory, Time now,
                          std::map<std::string, Claim> claims) {
  if (std::any_of(reservation_.begin(), reservation_.end(),
                  [&](const GpuSlot& slot) { return slot.node == &node; })) {
    lift_reservation();
    head_ = 0;
  }
  if (defragmentation_ && (std::any_of(defragmentation_->place.begin(), defragmentation_->place.end(),
                                       [&](const GpuSlot& slot) { return slot.node == &node; })))
    fail_defragmentation("node '" + node.name() + "' has another inventory now", now);
  placer_->removed(node);
  std::set<std::string> reported;  // UUIDs in the old or the new inventory
  for (const Gpu& gpu : node.gpus) {
    total_.milli -= kWholeGpu;
    total_.memory -= gpu.allocations.total.memory;
    claims[gpu.uuid] = gpu.claim;
    reported.insert(gpu.uuid);
    claims_.remove(gpu.uuid, node.name());
  }
  node.inventory = inventory;
  node.gpus.clear();
  for (const pool::Gpu& has : inventory.gpus()) {
    Gpu& gpu = node.gpus.emplace_back();
    gpu.uuid = has.uuid();
    gpu.model = has.model();
    gpu.allocations.total = {kWholeGpu, has.memory_bytes()};
    total_.milli += kWholeGpu;
    total_.memory += has.memory_bytes();
    const auto before = claims.find(gpu.uuid);
    gpu.claim = before == claims.end() ? Claim{.since = now} : before->second;
    claims_.add(gpu.uuid, node.name());
    reported.insert(gpu.uuid);
  }
  node.host = {};
  node.host.total = {inventory.cpu_milli(), inventory.host_memory_bytes()};
  impossible_.clear();
  recheck_waiting_ = true;
  changed(node, true);
  for (const std::string& uuid : reported) judge_claims(uuid);
}

// Withholds the GPU where another node has a better claim to it.
void Core::judge_claims(const std::string& uuid) {
  for (const Claims::Change& change : claims_.judge(uuid)) {
    const Node& node = *change.node;
    if (change.gpu->allocations.withheld)
      note("gpu_withheld", {{"node", node.name()}, {"gpu", uuid}, {"reason", change.gpu->withheld_because}},
           Note::Level::warning);
    else
      note("gpu_not_withheld", {{"node", node.name()}, {"gpu", uuid}});
    if (!change.was_withheld) counters_.set_gpu_disputes(counters_.gpu_disputes() + 1);
    impossible_.clear();
    recheck_waiting_ = true;
    changed(*change.node, change.was_withheld);
  }
}

pool::NodeOrders Core::orders(const Node& node, Time now) const {
  pool::NodeOrders orders;
  orders.set_heartbeat_ms(policy_.heartbeat_ms());
  orders.set_now_ms(now);
  orders.set_fenced_because(node.fence());
  for (const LeaseId& id : node.leases) {
    const Lease& lease = leases_.all().at(id);
    if (!lease.ending) {
      order_to_move(lease, node, orders);
      order_to_suspend(lease, orders);
      continue;
    }
    pool::EndLease& order = *orders.add_end();
    order.set_lease(id);
    order.set_reason(lease.reason);
    order.set_grace_ms(static_cast<uint32_t>(std::max<Time>(0, lease.end_at - now)));
  }
  for (const LeaseId& id : node.unknown_leases) {
    pool::EndLease& order = *orders.add_end();
    order.set_lease(id);
    order.set_reason("the lease has ended");
  }
  for (const pool::CountersRecorded& one : node.counters_recorded) *orders.add_recorded() = one;
  return orders;
}

}  // namespace gpupool::scheduler
