// A node of the random test (random_events.h): poold as far as the scheduler sees it, and the oracle's record
// of which leases can be used there.
#pragma once
#include <map>
#include <set>
#include <vector>

#include "tests/scheduler/core/pool.h"

namespace gpupool::scheduler {

struct SimulatedNode {
  uint64_t number;
  uint64_t boot;
  int gpus;
  bool alive = true;
  Stream stream = 0;
  std::set<LeaseId> sessions;
  std::map<LeaseId, uint64_t> ended;  // tokens up to this serial are void
  std::set<LeaseId> answers;          // for the next report
  std::vector<pool::NodeOrders> inbox;
  std::map<LeaseId, lease::Lease> usable;                // oracle: leases that can be used on this node
  std::map<LeaseId, pool::LeaseSuspension> suspensions;  // answers to the last orders
  // Of a lease that this node has reported as suspended, until it gets the order to resume it.
  std::map<LeaseId, lease::Lease> suspended;
  bool is_suspended(const LeaseId& lease) const {
    const auto found = suspensions.find(lease);
    return found != suspensions.end() && found->second.state() == pool::LeaseSuspension::SUSPENDED;
  }
  void die() {
    alive = false;
    sessions.clear();
    ended.clear();
    answers.clear();
    usable.clear();
    suspended.clear();
    suspensions.clear();
  }
  // Executes the orders of one message. Sessions of some leases can hardly be suspended. An order may be
  // executed at once, or with a later message. pick(n): a random number below n.
  template <class Pick>
  void suspend_sessions(const pool::NodeOrders& orders, Pick pick) {
    std::set<LeaseId> ordered;
    for (const auto& order : orders.suspend()) {
      ordered.insert(order.lease());
      suspend_sessions(order, pick);
    }
    std::erase_if(suspensions, [&](const auto& one) {
      return one.second.state() == pool::LeaseSuspension::RUNNING && !ordered.contains(one.first);
    });
  }

 private:
  template <class Pick>
  void suspend_sessions(const pool::SuspendLease& order, Pick pick) {
    using pool::LeaseSuspension;
    LeaseSuspension& its = suspensions[order.lease()];
    if (order.number() < its.number()) return;
    if (order.number() > its.number()) {
      its.set_lease(order.lease());
      its.set_number(order.number());
      its.set_state(order.resume() ? LeaseSuspension::RESUMING : LeaseSuspension::SUSPENDING);
      its.clear_reason();
      const auto kept = suspended.find(order.lease());
      if (order.resume() && kept != suspended.end()) {
        usable[order.lease()] = kept->second;
        suspended.erase(kept);
      }
    }
    if (pick(2)) return;
    if (its.state() == LeaseSuspension::RESUMING) its.set_state(LeaseSuspension::RUNNING);
    if (its.state() != LeaseSuspension::SUSPENDING) return;
    if (static_cast<unsigned char>(order.lease()[1]) % 4 == 0 && pick(4) != 0) {
      its.set_state(LeaseSuspension::RUNNING);
      its.set_reason("it cannot");
      return;
    }
    its.set_state(LeaseSuspension::SUSPENDED);
    const auto token = usable.find(order.lease());
    if (token == usable.end()) return;
    suspended[order.lease()] = token->second;
    usable.erase(token);
  }
};

}  // namespace gpupool::scheduler
