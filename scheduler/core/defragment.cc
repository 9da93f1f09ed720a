// Core: moves of leases that make room for the head of the queue (policy `defragment`).
// placement/defragment.h decides which moves; this file describes the pool to it, begins the moves, and keeps
// the place until the request is granted.
//
// A defragmentation never owns anything: its moves are moves like those of an operator, and its place is the
// head's reservation. It ends when the request is granted or leaves the queue, when a move fails, or when the
// place is lost; moves that are under way then go on.
#include "scheduler/placement/defragment.h"

#include <algorithm>
#include <unordered_map>

#include "common/text/units.h"
#include "scheduler/core/core.h"
#include "scheduler/core/feasibility.h"

namespace gpupool::scheduler {
namespace {

using placement::DefragHost;
using placement::RunningPart;

constexpr Time kSearchEvery = placement::kSearchEverySeconds * 1000;

std::string number_text(double value) {
  return std::to_string(static_cast<uint64_t>(std::clamp(value, 0.0, 1e15)));
}

// The pool as plan_defragmentation() sees it: the open nodes, and the parts of leases on them.
struct Picture {
  std::vector<Node*> nodes;
  std::unordered_map<const Node*, uint32_t> host_of;
  std::vector<DefragHost> hosts;
  std::vector<RunningPart> parts;
  // By part: its lease, and its index in Lease::parts if it can move.
  std::vector<std::pair<Lease*, size_t>> leases;

  void add_host(Node& node, const Demand& demand, std::map<std::string, uint32_t>& kinds) {
    host_of[&node] = static_cast<uint32_t>(hosts.size());
    nodes.push_back(&node);
    const HostAmount left = node.host.free();
    DefragHost& host = hosts.emplace_back();
    host.for_request = !demand.apart.contains(&node);
    host.cpu_milli = static_cast<int64_t>(left.cpu_milli);
    host.host_memory = static_cast<int64_t>(left.memory);
    for (const Gpu& gpu : node.gpus) {
      const Amount free = gpu.allocations.free(), need = demand.of(gpu);
      const bool suits = demand.suits(gpu) && !gpu.allocations.withheld && need.within(gpu.allocations.total);
      host.gpus.push_back({.kind = kinds.try_emplace(gpu.model, kinds.size()).first->second,
                           .size = gpu.allocations.total.memory,
                           .milli = static_cast<int>(free.milli),
                           .memory = free.memory,
                           .need_milli = suits ? static_cast<int>(need.milli) : 0,
                           .need_memory = need.memory});
    }
  }
};

}  // namespace

// True if the lease's part at this place may move for a request of this priority.
bool Core::may_defragment(const Lease& lease, size_t place, lease::Priority priority) const {
  return !lease.ending && !lease.is_moving() && !lease.suspension && lease.holder != 0 &&
         place < lease.parts.size() && lease.parts[place].cannot_move.empty() &&
         lease.request.priority() <= priority;
}

// Describes a part of a lease. Leases have no known duration: one that has run for some time is expected to
// run for as long again.
RunningPart Core::running_part(const Lease& lease, const LeasePart& part, lease::Priority priority,
                               const std::unordered_map<const Node*, uint32_t>& host_of, Time now) const {
  RunningPart out;
  out.host = host_of.at(part.node);
  for (const auto& share : part.shares)
    out.shares.push_back({share.gpu, static_cast<int>(share.amount.milli), share.amount.memory});
  out.cpu_milli = static_cast<int64_t>(part.host.cpu_milli);
  out.host_memory = static_cast<int64_t>(part.host.memory);
  const size_t place = lease.place_on(*part.node);
  const bool arrives = lease.move && lease.move->to.node == part.node;
  const bool leaves =
      lease.frees_shares() || (!arrives && (place == lease.parts.size() || lease.moves_from(place)));
  out.remaining = leaves ? 0 : static_cast<double>(std::max<Time>(0, now - lease.granted)) / 1000;
  out.bytes = bytes_of(part);
  out.seconds = static_cast<double>(out.bytes) / static_cast<double>(policy_.move_bytes_per_second()) +
                policy_.move_silence_ms() / 1000.0;
  // A move that takes longer than policy `move` is undone, so it is not begun.
  const bool in_time = policy_.move_ms() == 0 || out.seconds * 1000 <= policy_.move_ms();
  out.movable = in_time && may_defragment(lease, place, priority);
  if (!out.movable) return out;
  const auto exclude = [&](const Node* node) {
    if (const auto host = host_of.find(node); host != host_of.end()) out.excluded.push_back(host->second);
  };
  if (lease.request.labels_size() + lease.request.apart_from_size() > 0) {
    for (const Node* const node : demand_of(lease, part).apart) exclude(node);
  }
  lease.for_each_part([&](const LeasePart& other) {
    if (other.node != part.node) exclude(other.node);
  });
  return out;
}

// Returns what the budget allows now.
placement::DefragLimits Core::defragment_limits(Time now) {
  while (!defragmentation_spent_.empty() && defragmentation_spent_.front().at <= now - kHour)
    defragmentation_spent_.pop_front();
  uint64_t moves = 0, bytes = 0;
  for (const DefragmentationSpent& one : defragmentation_spent_) moves += one.moves, bytes += one.bytes;
  const placement::DefragBudget budget{.moves = policy_.defragment_moves(),
                                       .bytes = policy_.defragment_bytes(),
                                       .at_once = policy_.defragment_at_once()};
  return placement::limits_left(budget, moves, bytes, moving_.size());
}

// Begins moves after which the request fits, if there are any within the budget that cost less than they
// bring, and reserves their place for it.
bool Core::defragment(const WaitingRequest& waiter, const Demand& demand, Time now) {
  if (!policy_.defragment() || !settled_ || defragmentation_ || now < defragment_at_) return false;
  const placement::DefragLimits limits = defragment_limits(now);
  if (limits.moves == 0) return false;
  defragment_at_ = now + kSearchEvery;
  Picture picture;
  std::map<std::string, uint32_t> kinds;
  for (auto& [name, node] : nodes_) {
    if (node.open()) picture.add_host(node, demand, kinds);
  }
  const placement::DefragRequest request{.gpus = static_cast<int>(demand.gpus),
                                         .one_host = demand.one_host,
                                         .cpu_milli = static_cast<int64_t>(demand.host.cpu_milli),
                                         .host_memory = static_cast<int64_t>(demand.host.memory),
                                         .milli = static_cast<double>(demand.milli)};
  if (!placement::enough_is_free(picture.hosts, request)) return false;  // before the leases, which are many
  std::unordered_map<const Lease*, uint32_t> numbers;
  picture.parts.reserve(leases_.all().size());
  picture.leases.reserve(leases_.all().size());
  for (const Node* const node : picture.nodes) {
    for (const LeaseId& id : node->leases) {
      Lease& lease = *leases_.find(id);
      if (lease.is_suspended()) continue;
      picture.parts.push_back(
          running_part(lease, *lease.part_on(*node), waiter.request.priority(), picture.host_of, now));
      picture.parts.back().lease = numbers.try_emplace(&lease, numbers.size()).first->second;
      picture.leases.emplace_back(&lease, lease.place_on(*node));
    }
  }
  const auto plan = placement::plan_defragmentation(picture.hosts, picture.parts, request, limits);
  if (!plan) return false;
  std::vector<GpuSlot> place;
  for (const auto& [host, gpu] : plan->place) place.push_back({picture.nodes[host], gpu});
  if (exceeds_quota(tenant(waiter.tenant), demand, place)) return false;
  // The search ignores labels between the request and moved leases, so plans that put a moved lease on one of
  // the request's hosts are dropped.
  const bool keeps_apart = waiter.request.labels_size() + waiter.request.apart_from_size() > 0;
  if (keeps_apart && std::any_of(plan->moves.begin(), plan->moves.end(), [&](const auto& move) {
        return std::any_of(plan->place.begin(), plan->place.end(),
                           [&](const auto& slot) { return slot.first == move.host; });
      }))
    return false;
  reserve_slots(std::move(place), demand);
  std::vector<DefragMove> moves;
  for (const auto& move : plan->moves) {
    const auto& [lease, at] = picture.leases[move.part];
    LeasePart to;
    to.node = picture.nodes[move.host];
    to.host = lease->parts[at].host;
    to.shares = lease->parts[at].shares;
    for (size_t i = 0; i < to.shares.size(); ++i) to.shares[i].gpu = move.gpus[i];
    moves.push_back({lease, at, std::move(to)});
  }
  return begin_defragmentation(waiter, std::move(moves), *plan, now);
}

// Returns false, and lifts the reservation, if a move is impossible after all.
bool Core::begin_defragmentation(const WaitingRequest& waiter, std::vector<DefragMove> moves,
                                 const placement::DefragPlan& plan, Time now) {
  for (const DefragMove& move : moves) {
    const LeasePart& part = move.lease->parts[move.place];
    if (!why_not_to(*move.lease, part, demand_of(*move.lease, part), *move.to.node)) continue;
    lift_reservation();
    return false;
  }
  Defragmentation& begun = defragmentation_.emplace();
  begun.tenant = waiter.tenant;
  begun.request = waiter.request;
  begun.stream = waiter.stream;
  begun.place = reservation_;
  begun.since = now;
  const std::string because =
      "makes room for " + text_of(Demand(waiter.request)) + " of tenant '" + waiter.tenant + "'";
  for (DefragMove& move : moves) {
    begun.steps.push_back({move.lease->id, move.lease->parts[move.place].node});
    begin_move(*move.lease, move.place, std::move(move.to), now, because);
  }
  const auto count = static_cast<uint32_t>(moves.size());
  defragmentation_spent_.push_back({now, count, plan.bytes});
  counters_.set_defragmentations(counters_.defragmentations() + 1);
  counters_.set_defragmentation_moves(counters_.defragmentation_moves() + count);
  counters_.set_defragmentation_bytes(counters_.defragmentation_bytes() + plan.bytes);
  note("defragmentation_begun", {{"request", waiter.queue_id()},
                                 {"tenant", waiter.tenant},
                                 {"gpus", std::to_string(waiter.request.gpus())},
                                 {"moves", std::to_string(count)},
                                 {"bytes", std::to_string(plan.bytes)},
                                 {"cost_gpu_seconds", number_text(plan.cost)},
                                 {"gain_gpu_seconds", number_text(plan.gain)},
                                 {"expected_wait_seconds", number_text(plan.wait)}});
  dirty_defragmentation_ = true;
  return true;
}

// Has the queue looked at again when moves may be possible that were not before, or a place is held no
// longer.
void Core::tick_defragmentation(Time now) {
  if (defragmentation_ && defragmentation_->stream == 0 && now >= defragmentation_->hold_until) dirty_ = true;
  if (!policy_.defragment() || head_ == 0 || defragmentation_ || now < defragment_tick_at_) return;
  dirty_ = true;  // leases have become older, and the budget may have room again
  defragment_tick_at_ = now + kSearchEvery;
}

// True if leases move for this waiting request.
bool Core::makes_room_for(Stream stream) const {
  return defragmentation_ && defragmentation_->stream == stream;
}

// Returns the step's lease while it has a part on the node that it is to leave; afterwards null.
const Lease* Core::find_unfinished(const Defragmentation::Step& step) const {
  const Lease* const lease = leases_.find(step.lease);
  return lease && lease->part_on(*step.from) ? lease : nullptr;
}

// True if every lease of the defragmentation has left the node that it was to leave.
bool Core::has_made_room() const {
  return std::all_of(defragmentation_->steps.begin(), defragmentation_->steps.end(),
                     [&](const Defragmentation::Step& step) { return find_unfinished(step) == nullptr; });
}

// Returns the GPUs that moves of other leases have freed for the request, or nullopt.
std::optional<std::vector<GpuSlot>> Core::place_made_for(const WaitingRequest& waiter) const {
  if (!makes_room_for(waiter.stream) || !has_made_room()) return std::nullopt;
  return defragmentation_->place;
}

// Reserves the place that moves make free for the request. Returns false if there are no such moves, or if
// the place is not free after them.
bool Core::hold_place(const WaitingRequest& waiter, const Demand& demand, Time now) {
  if (!makes_room_for(waiter.stream)) return false;
  if (has_made_room()) {
    fail_defragmentation("the place is not free after the moves", now);
    return false;
  }
  reserve_slots(defragmentation_->place, demand);
  return true;
}

// Keeps the place for a request whose client has not come back yet since this scheduler started.
void Core::hold_place_of_absent(lease::Priority priority) {
  if (defragmentation_ && defragmentation_->stream == 0 && head_ == 0 &&
      defragmentation_->request.priority() == priority)
    reserve_slots(defragmentation_->place, Demand(defragmentation_->request));
}

// A request has come back to the queue, or its client was connected anew: lets it have its place.
void Core::find_defragmentation_of(const WaitingRequest& waiter) {
  if (!defragmentation_ || defragmentation_->stream != 0 || waiter.request.id().empty() ||
      defragmentation_->tenant != waiter.tenant || defragmentation_->request.id() != waiter.request.id())
    return;
  defragmentation_->stream = waiter.stream;
  heads_.insert(heads_.begin(), waiter.stream);
}

// Ends the defragmentation if its request has left the queue, its place is lost, or a lease does not move.
void Core::check_defragmentation(Time now) {
  if (!defragmentation_) return;
  const Defragmentation& begun = *defragmentation_;
  if (begun.stream == 0 ? now >= begun.hold_until : !queue_.find(begun.stream))
    return fail_defragmentation("the request has left the queue", now);
  for (const GpuSlot& slot : begun.place) {
    const bool good = slot.node->open() && !slot.node->gpus[slot.gpu].allocations.withheld;
    // After a start, nodes are given time to register.
    if (!good && settled_)
      return fail_defragmentation("node '" + slot.node->name() + "' gets no leases now", now);
  }
  for (const Defragmentation::Step& step : begun.steps) {
    const Lease* const lease = leases_.find(step.lease);
    const size_t place = lease && !lease->ending ? lease->place_on(*step.from) : SIZE_MAX;
    if (!lease || lease->ending || place >= lease->parts.size() || lease->moves_from(place)) continue;
    const std::string& why = lease->parts[place].cannot_move;
    return fail_defragmentation("lease " + short_text(step.lease) + " has not left node '" +
                                    step.from->name() + "'" + (why.empty() ? "" : ": " + why),
                                now);
  }
}

// Ends the defragmentation if its request, which is not the head now, has not got the place that is free.
void Core::check_place_taken(Time now) {
  if (defragmentation_ && defragmentation_->stream != 0 && defragmentation_->stream != head_ &&
      has_made_room())
    fail_defragmentation("the request is not first in the queue now, or its tenant's quota is exhausted",
                         now);
}

void Core::fail_defragmentation(const std::string& reason, Time now) {
  counters_.set_defragmentations_failed(counters_.defragmentations_failed() + 1);
  end_defragmentation("defragmentation_failed", reason, now);
}

void Core::end_defragmentation(const char* event, const std::string& reason, Time now) {
  const WaitingRequest* const waiter = queue_.find(defragmentation_->stream);
  note(event, {{"request", waiter ? waiter->queue_id() : ""},
               {"tenant", defragmentation_->tenant},
               {"gpus", std::to_string(defragmentation_->request.gpus())},
               {"moves", std::to_string(defragmentation_->steps.size())},
               {"seconds", std::to_string(std::max<Time>(0, now - defragmentation_->since) / 1000)},
               {"reason", reason}});
  defragmentation_.reset();
  dirty_defragmentation_ = true;
}

// "; to make room for it, lease 3fa85f64 moves from n1 to n2"; empty if nothing moves for the request.
std::string Core::explain_defragmentation(const WaitingRequest& waiter) const {
  constexpr size_t kMostLeases = 3;
  if (!makes_room_for(waiter.stream)) return "";
  std::string text;
  size_t moving = 0;
  for (const Defragmentation::Step& step : defragmentation_->steps) {
    const Lease* const lease = find_unfinished(step);
    if (!lease || ++moving > kMostLeases) continue;
    text += (moving == 1 ? "; to make room for it, lease " : ", lease ") + short_text(step.lease) +
            (lease->move ? " moves from " + step.from->name() + " to " + lease->move->to.node->name()
                         : " ends on " + step.from->name());
  }
  return moving <= kMostLeases ? text : text + " and " + std::to_string(moving - kMostLeases) + " more";
}

}  // namespace gpupool::scheduler
