// Core: moves of leases between nodes while their programs run: begin, end, time limit, failures.
//
// A move allocates an arriving part (Lease::move), gives the holder a token for it, and orders the other node
// to move the lease's sessions there. When that node reports that none is left, the arriving part takes the
// place of the old one. Any other end of the move leaves a part that programs are not to use any more, but
// may (Lease::leaving): it is freed only after its node has confirmed that, by the same order.
#include <algorithm>

#include "common/text/units.h"
#include "protocol/lease/token.h"
#include "scheduler/core/core.h"

namespace gpupool::scheduler {
namespace {

constexpr int kHeartbeatsToAnswer = 3;

std::string seconds_text(Time milliseconds) {
  return std::to_string(std::max<Time>(0, milliseconds) / 1000);
}

}  // namespace

void Core::note_move(const char* event, const Lease& lease, const Node& from, const Node& to, Time since,
                     const std::string& reason, Time now) {
  note(event, {{"lease", lease::hexadecimal(lease.id)},
               {"tenant", lease.tenant},
               {"from", from.name()},
               {"to", to.name()},
               {"seconds", seconds_text(now - since)},
               {"reason", reason}});
}

void Core::begin_move(Lease& lease, size_t place, LeasePart to, Time now, const std::string& because) {
  LeasePart& from = lease.parts[place];
  from.cannot_move.clear();
  from.waits_because.clear();
  from.last_serial = lease.serial + 1;  // renew() issues the last tokens for this node
  lease.move = LeaseMove{.to = std::move(to),
                         .place = place,
                         .since = now,
                         .timed_from = now,
                         .cannot_move = {},
                         .because = because};
  moving_.insert(lease.id);
  enter_part(lease, lease.move->to);
  counters_.set_moves_begun(counters_.moves_begun() + 1);
  note_move("lease_moving", lease, *from.node, *lease.move->to.node, now, because, now);
  answer(*from.node);
  renew(lease, now);
}

// Lets another part of the lease take the place of a part whose node reports that the lease has left it, or
// is lost: the arriving part, or one that has not left yet after its move was turned round. `gone`: no
// session of the lease is left on the old node. Returns false if there is no other part.
bool Core::substitute(Lease& lease, size_t place, bool gone, const std::string& reason, Time now) {
  LeasePart next;
  Time since = now;
  if (lease.moves_from(place)) {
    next = std::move(lease.move->to);
    since = lease.move->since;
    lease.move.reset();
    moving_.erase(lease.id);
    counters_.set_moves_done(counters_.moves_done() + 1);
  } else {
    const auto other =
        std::find_if(lease.leaving.rbegin(), lease.leaving.rend(),
                     [&](const LeavingPart& one) { return one.place == place && !one.part.node->lost; });
    if (other == lease.leaving.rend()) return false;
    next = std::move(other->part);
    since = other->since;
    lease.leaving.erase(std::next(other).base());
    next.cannot_move.clear();
    next.last_serial = 0;
    next.recalled = true;
  }
  accrue(lease, now);
  next.counted = true;  // with the same amounts
  LeasePart old = std::exchange(lease.parts[place], std::move(next));
  old.counted = false;
  Node& to = *lease.parts[place].node;
  note_move("lease_moved", lease, *old.node, to, since, reason, now);
  answer(*old.node);
  answer(to);
  if (gone) {
    free_part(lease, old);
  } else {
    old.cannot_move.clear();
    if (old.last_serial == 0) old.last_serial = lease.serial;
    lease.leaving.push_back(
        {.part = std::move(old), .place = place, .back = false, .since = now, .reason = reason});
  }
  renew(lease, now);
  return true;
}

// Ends the lease's move without success. `gone`: no session of the lease is left on the node to which it was
// to move; otherwise those that are there are ordered back.
void Core::fail_move(Lease& lease, const std::string& reason, bool gone, Time now) {
  LeaseMove move = std::move(*lease.move);
  lease.move.reset();
  moving_.erase(lease.id);
  Node& from = *lease.parts[move.place].node;
  Node& to = *move.to.node;
  counters_.set_moves_failed(counters_.moves_failed() + 1);
  note_move("lease_move_failed", lease, from, to, move.since, reason, now);
  answer(from);
  answer(to);
  try_again(lease, move.place);
  lease.parts[move.place].last_serial = 0;
  lease.parts[move.place].recalled = true;
  if (!gone) {
    move.to.last_serial = lease.serial + 1;
    lease.leaving.push_back({.part = std::move(move.to),
                             .place = move.place,
                             .back = true,
                             .since = move.since,
                             .reason = reason});
  } else {
    free_part(lease, move.to);
  }
  // The first node may have made its tokens void already. The holder keeps a token for the other one until
  // the sessions are back.
  renew(lease, now);
}

// Lets move_away() try the part, although the nodes have not more room than before.
void Core::try_again(Lease& lease, size_t place) {
  lease.parts[place].tried_at = 0;
  dirty_ = true;
}

// Frees the part on a node that the lease was to leave.
void Core::forget_leaving(Lease& lease, const Node& node, Time now) {
  const auto found = std::find_if(lease.leaving.begin(), lease.leaving.end(),
                                  [&](const LeavingPart& one) { return one.part.node == &node; });
  const LeavingPart left = std::move(*found);
  lease.leaving.erase(found);
  const Node& to = *lease.parts[left.place].node;
  note_move(left.back ? "lease_moved_back" : "lease_left_node", lease, node, to, left.since, left.reason,
            now);
  free_part(lease, left.part);
  renew(lease, now);
}

// The node has reported that no session of the lease is left there, and that its tokens are void.
void Core::lease_left(Lease& lease, Node& node, Time now) {
  if (lease.ending) return part_gone(lease, node, now);
  const LeasePart& part = *lease.part_on(node);
  if (part.last_serial == 0 && part.recalled) return;  // the answer to an order that was taken back
  std::erase_if(lease.left, [&](const auto& process) {
    const auto known = nodes_.find(process.first);
    return known == nodes_.end() || known->second.boot() != process.second;
  });
  lease.left.emplace_back(node.name(), node.boot());
  const std::string ended = "node '" + node.name() + "' ended it";
  if (lease.move && lease.move->to.node == &node) return fail_move(lease, ended, true, now);
  if (lease.leaving_from(node)) return forget_leaving(lease, node, now);
  if (part.last_serial != 0 && substitute(lease, lease.place_on(node), true, "", now)) return;
  end(lease, pool::Ended::EVICTED, ended, policy_.grace_ms(), now);
  part_gone(lease, node, now);
}

// Handles the loss of a node with a part of the lease. `gone`: its poold process is gone, so nothing of the
// lease runs there any more; otherwise the part stays allocated.
void Core::lose_part(Lease& lease, Node& node, const std::string& reason, bool gone, Time now) {
  if (!lease.ending) {
    if (lease.move && lease.move->to.node == &node) return fail_move(lease, reason, gone, now);
    if (const LeavingPart* const leaving = lease.leaving_from(node))
      return gone ? forget_leaving(lease, node, now) : try_again(lease, leaving->place);
    if (substitute(lease, lease.place_on(node), gone, reason, now)) return;
    const bool at_once = gone && lease.parts.size() == 1;
    end(lease, pool::Ended::NODE_LOST, reason, at_once ? 0 : policy_.grace_ms(), now);
  }
  if (gone) return part_gone(lease, node, now);
  const LeasePart& part = *lease.part_on(node);
  if (part.counted || !part.allocated) release_quota(lease, now);
}

// Called when a lease ends: all of its parts end, also those that are arriving or leaving.
void Core::gather_parts(Lease& lease, const std::string& reason, Time now) {
  if (lease.move) {
    counters_.set_moves_cut(counters_.moves_cut() + 1);
    note_move("lease_move_failed", lease, *lease.parts[lease.move->place].node, *lease.move->to.node,
              lease.move->since, "the lease ends: " + reason, now);
    lease.parts.push_back(std::move(lease.move->to));
    lease.move.reset();
    moving_.erase(lease.id);
  }
  for (LeavingPart& one : lease.leaving) lease.parts.push_back(std::move(one.part));
  lease.leaving.clear();
}

// Adds the order to move the lease's sessions away from the node, if they are to leave it.
void Core::order_to_move(const Lease& lease, const Node& node, pool::NodeOrders& orders) {
  const Node* to = nullptr;
  if (lease.moves_from(lease.place_on(node))) to = lease.move->to.node;
  for (const LeavingPart& one : lease.leaving) {
    if (one.part.node == &node) to = lease.parts[one.place].node;
  }
  if (!to) return;
  pool::MoveLease& order = *orders.add_move();
  order.set_lease(lease.id);
  order.set_address(to->inventory.addresses(0));
  order.set_serial(lease.part_on(node)->last_serial);
}

// Turns moves round that have exceeded the time limit.
void Core::check_moves(Time now) {
  const uint32_t limit = policy_.move_ms();
  if (limit == 0) return;
  for (const LeaseId& id : std::set<LeaseId>(moving_)) {
    Lease& lease = *leases_.find(id);
    const Node& from = *lease.parts[lease.move->place].node;
    // A silent node may have executed the order already, and the lease would go back for nothing: wait for
    // its report, or until it is lost. When it registers again, give it time to answer once more.
    if (from.silent || now < lease.move->timed_from + limit) continue;
    if (!from.registrations.empty() &&
        now < from.registrations.back() + kHeartbeatsToAnswer * int64_t{policy_.heartbeat_ms()})
      continue;
    const uint32_t sessions = lease.parts[lease.move->place].sessions;
    const std::string reason = "it did not end within " + seconds_text(limit) + " s: " +
                               (lease.move->cannot_move.empty()
                                    ? counted(sessions, "session") + " left on node '" + from.name() + "'"
                                    : lease.move->cannot_move);
    lease.parts[lease.move->place].cannot_move = reason;
    fail_move(lease, reason, false, now);
  }
}

// Begins to move the leases of nodes that are drained with `move`, as far as other nodes have room. A part
// whose move has failed is not tried again.
void Core::move_away(Time now) {
  for (auto& [name, node] : nodes_) {
    if (!node.moves_away) continue;
    for (const LeaseId& id : std::set<LeaseId>(node.leases)) {
      Lease& lease = *leases_.find(id);
      const size_t place = lease.ending ? lease.parts.size() : lease.place_on(node);
      if (place == lease.parts.size() || lease.is_moving()) continue;
      LeasePart& part = lease.parts[place];
      if (lease.suspension) {
        part.waits_because = "it is suspended, and can move when it has been resumed";
        continue;
      }
      if (!part.cannot_move.empty() || part.tried_at == capacity_) continue;
      auto to = place_part(lease, part, nullptr);
      if (to) {
        begin_move(lease, place, std::move(*to), now);
      } else {
        part.tried_at = capacity_;
        part.waits_because = to.error().message;
      }
    }
  }
}

// Evicts the leases of a node that is drained with `move` and `evict`: those that cannot move at once, those
// that wait when it is time to tell their holders, and all others at the end. All get until the same time.
void Core::evict_rest(Node& node, Time now) {
  if (node.evict_at == 0) return;
  const Time left = std::max<Time>(0, node.evict_at - now);
  for (const LeaseId& id : std::set<LeaseId>(node.leases)) {
    Lease& lease = *leases_.find(id);
    if (lease.ending) continue;
    const size_t place = lease.place_on(node);
    const bool stays = place < lease.parts.size() && !lease.moves_from(place);
    const bool failed = stays && !lease.parts[place].cannot_move.empty();
    if (left == 0 || failed || (stays && now >= node.evict_notice_at))
      end(lease, pool::Ended::EVICTED, "node '" + node.name() + "' is drained: " + node.drained_because,
          static_cast<uint32_t>(left), now);
  }
}

}  // namespace gpupool::scheduler
