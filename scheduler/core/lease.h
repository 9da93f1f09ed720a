// A lease in the scheduler's core: its request, its parts on nodes, and its state. Owned by Core; its thread.
#pragma once
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "protocol/lease/token.h"
#include "scheduler/core/node.h"
#include "scheduler/core/tenant.h"
#include "scheduler/core/usage.h"

namespace gpupool::scheduler {

// Returns the first digits of a lease's id, for messages. Operators' commands accept them.
inline std::string short_text(const LeaseId& id) {
  return lease::hexadecimal(id).substr(0, 8);
}

struct LeasePart {
  struct Share {
    uint32_t gpu;  // index in Node::gpus
    Amount amount;
  };
  Node* node;
  std::vector<Share> shares;
  HostAmount host;
  uint32_t sessions = 0;            // in the node's last report
  pool::SessionBreaks breaks;       // likewise
  bool counted = true;              // its shares are included in the tenant's usage
  bool allocated = true;            // false: the lease is suspended, and its shares may be others'
  pool::LeaseSuspension suspended;  // the node's last answer to an order to suspend or resume the lease
  // Not 0: the node is ordered to let the lease go. The order makes tokens up to this serial void, and none
  // for this node has a higher one until the order is taken back.
  uint64_t last_serial = 0;
  // The poold process was ordered before to let the lease go, in vain or in an earlier stay. An answer to
  // that order, which may still come, says nothing of tokens that were issued since.
  bool recalled = false;
  // Why its last move failed; of a leaving part: why a session could not move so far. Empty: nothing of the
  // kind is known.
  std::string cannot_move;
  // Only for a part that programs use:
  std::string waits_because;  // why it has not begun to leave a node that is drained with `move`
  uint64_t tried_at = 0;      // Core::capacity_ when no other node had room for it
};

// Applies `change` to the allocations of the GPUs and of the host that this part of a lease uses.
template <class Change>
void for_each_allocation(const LeasePart& part, Change change) {
  for (const auto& share : part.shares) change(part.node->gpus[share.gpu].allocations, share.amount);
  change(part.node->host, part.host);
}

// Add a part's shares to its tenant's usage, and subtract them. Call Tenant::count() before.
inline void add_usage(const LeasePart& part, Tenant& tenant) {
  for (const auto& share : part.shares) {
    tenant.milli += share.amount.milli;
    tenant.memory += share.amount.memory;
  }
}
inline void subtract_usage(const LeasePart& part, Tenant& tenant) {
  for (const auto& share : part.shares) {
    tenant.milli -= share.amount.milli;
    tenant.memory -= share.amount.memory;
  }
}

// Returns the memory that a move or a suspension of the part copies: what the lease has, but not more than is
// in use on its GPUs according to their node.
inline uint64_t bytes_of(const LeasePart& part) {
  uint64_t bytes = 0;
  for (const auto& share : part.shares) {
    const Gpu& gpu = part.node->gpus[share.gpu];
    bytes += gpu.use.uuid().empty() ? share.amount.memory
                                    : std::min(share.amount.memory, gpu.use.memory_used_bytes());
  }
  return bytes;
}

// A lease is moving: `to` takes the place of a part when the node of that part reports that no session of the
// lease is left there.
struct LeaseMove {
  LeasePart to;  // allocated, but not counted in the tenant's usage
  size_t place;  // of the part that it replaces, in Lease::parts
  Time since;
  Time timed_from;          // `since`, plus the time during which the scheduler was suspended
  std::string cannot_move;  // in the last report of the node that the lease leaves
  std::string because;      // what it moves for; empty: an operator's command, or its node is drained
};

// A part that programs are not to use any more. It stays allocated until its node reports that no session of
// the lease is left, has another poold process, or is removed.
struct LeavingPart {
  LeasePart part;  // not counted in the tenant's usage
  size_t place;    // its sessions are to move to the part at this place in Lease::parts
  bool back;       // its move was turned round; false: its node was lost while the lease moved away from it
  Time since;      // when the move began, or when the node was lost
  std::string reason;
};

// The lease is not simply to run (suspensions.cc).
struct Suspension {
  enum class State {
    suspending,  // its nodes are to suspend its sessions; its shares are still allocated
    suspended,   // it has no shares, until its GPUs have room again
    resuming,    // its shares are allocated again, and its nodes are to resume its sessions
  };
  State state = State::suspending;
  bool held = false;       // by an operator, until he has it resumed
  bool preempted = false;  // a request needs its GPUs: it ends if it cannot be suspended
  Time since = 0;          // when `state` began
  Time timed_from = 0;     // `since`, plus the time during which the scheduler was suspended
  std::string because;     // what it is suspended for
  // Resuming: why it was not suspended; empty: it was. Suspended: why it has not been resumed.
  std::string reason;
};

struct Lease {
  LeaseId id;
  std::string tenant;
  pool::Request request;
  std::string queue_id;  // WaitingRequest::queue_id() of its request; empty: granted by an earlier leader
  // The parts that programs use, in the order of the client's CUDA devices. Of an ending lease: all parts
  // that are still allocated.
  std::vector<LeasePart> parts;
  std::optional<LeaseMove> move;         // not of an ending lease
  std::vector<LeavingPart> leaving;      // not of an ending lease
  std::optional<Suspension> suspension;  // not of an ending lease, nor of one that moves
  uint64_t suspension_orders = 0;        // number of the last order to suspend or resume it
  std::string cannot_suspend;            // why that failed the last time
  Time keeps_until = 0;                  // not 0: it was resumed, and is not preempted before this time
  // Names and boot ids of the poold processes that the lease has left.
  std::vector<std::pair<std::string, std::string>> left;
  uint64_t serial = 1;  // of the tokens; incremented by each renewal
  Time granted = 0;
  uint64_t to_device_bytes_per_second = 0;
  uint64_t to_host_bytes_per_second = 0;
  uint32_t sessions = 0;  // maximum number of sessions; 0: unlimited

  Stream holder = 0;  // the client's stream; 0: disconnected
  Time deadline = 0;  // next renewal, or when a disconnected client's hold or the grace expires; 0: none
  bool ending = false;
  pool::Ended::Why why = pool::Ended::RELEASED;
  std::string reason;
  Time end_at = 0;       // end of the grace period
  bool counted = false;  // included in its tenant's usage
  LeaseUsage usage;

  bool is_suspended() const { return suspension && suspension->state == Suspension::State::suspended; }
  // True if its shares will be free soon.
  bool frees_shares() const {
    return ending || (suspension && suspension->state == Suspension::State::suspending);
  }
  bool preemptible() const {
    return request.priority() == lease::BEST_EFFORT && !ending && !suspension && keeps_until == 0;
  }
  template <class Visit>
  void for_each_part(Visit visit) {
    for (LeasePart& part : parts) visit(part);
    if (move) visit(move->to);
    for (LeavingPart& one : leaving) visit(one.part);
  }
  template <class Visit>
  void for_each_part(Visit visit) const {
    for (const LeasePart& part : parts) visit(part);
    if (move) visit(move->to);
    for (const LeavingPart& one : leaving) visit(one.part);
  }
  // Returns the lease's part on this node; null if it has none. A lease has at most one part on a node.
  LeasePart* part_on(const Node& node) {
    LeasePart* found = nullptr;
    for_each_part([&](LeasePart& part) { found = part.node == &node ? &part : found; });
    return found;
  }
  const LeasePart* part_on(const Node& node) const { return const_cast<Lease*>(this)->part_on(node); }
  // Returns the place in `parts` of the part that programs use on this node; parts.size() if there is none.
  size_t place_on(const Node& node) const {
    size_t place = 0;
    while (place < parts.size() && parts[place].node != &node) ++place;
    return place;
  }
  LeavingPart* leaving_from(const Node& node) {
    for (LeavingPart& one : leaving) {
      if (one.part.node == &node) return &one;
    }
    return nullptr;
  }
  // True if the part at this place is moving to another node.
  bool moves_from(size_t place) const { return move && move->place == place; }
  // True if no further move may begin. A part on a lost node does not prevent one.
  bool is_moving() const {
    return move || std::any_of(leaving.begin(), leaving.end(),
                               [](const LeavingPart& one) { return !one.part.node->lost; });
  }
};

// A part's shares are in one of the sums Allocations::ending and preemptible, or in neither, by the lease's
// state: take them out before it changes, and add them again after it.
inline void add_to_class(const Lease& lease, const LeasePart& part) {
  if (!part.allocated) return;
  for_each_allocation(part, [&](auto& allocations, const auto& amount) {
    if (lease.frees_shares())
      allocations.ending += amount;
    else if (lease.preemptible())
      allocations.preemptible += amount;
  });
}
inline void remove_from_class(const Lease& lease, const LeasePart& part) {
  if (!part.allocated) return;
  for_each_allocation(part, [&](auto& allocations, const auto& amount) {
    if (lease.frees_shares())
      allocations.ending -= amount;
    else if (lease.preemptible())
      allocations.preemptible -= amount;
  });
}

// A lease that has ended, kept to answer `pool-admin why`.
struct EndedLease {
  LeaseId id;
  std::string queue_id;
  pool::Ended::Why why;
  std::string reason;
  Time at;
};

}  // namespace gpupool::scheduler
