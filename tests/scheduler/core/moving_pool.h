// Fixture for tests of moves: TestPool with nodes of one kind, a lease on n1, and shorthands.
#pragma once
#include "tests/scheduler/core/pool.h"

namespace gpupool::scheduler {

struct MovingPool : TestPool {
  std::map<uint64_t, Stream> nodes;
  Stream holder = 0;
  LeaseId lease;

  // Registers nodes n1, n2, ... with these numbers of GPUs; then a client of tenant "a" gets `wish`.
  explicit MovingPool(const std::vector<int>& gpus, const pool::Request& wish = ask(1)) {
    for (size_t i = 0; i < gpus.size(); ++i) add_node(i + 1, 100 + i, gpus[i]);
    holder = request(wish);
    if (!grant(holder)) throw std::runtime_error("no room for the lease");
    lease = grant(holder)->lease;
  }

  void add_node(uint64_t number, uint64_t boot, int gpus, uint64_t memory = 16 * kGiB) {
    nodes[number] = register_node(number, boot, gpus, memory);
  }
  Result<LeaseId> move(const std::string& to = "", const std::string& from = "") {
    auto moved = core->move(lease::hexadecimal(lease), from, to, now);
    settle();
    return moved;
  }
  void report_on(uint64_t node, uint32_t sessions, const std::string& cannot_move = "") {
    pool::NodeReport report;
    report.set_ready(true);
    report.set_now_ms(now);
    pool::LeaseUse& use = *report.add_leases();
    use.set_lease(lease);
    use.set_sessions(sessions);
    use.set_cannot_move(cannot_move);
    core->report(nodes.at(node), report, now);
    settle();
  }
  // Lets time pass in which the nodes of `alive` report so many sessions of the lease; 0: none of it.
  void pass_with(const std::map<uint64_t, uint32_t>& alive, Time time) {
    for (; time > 0; time -= 1000) {
      pass(1000);
      for (const auto& [node, sessions] : alive) {
        if (sessions > 0)
          report_on(node, sessions);
        else
          report(nodes.at(node));
      }
    }
  }
  // The nodes of the holder's last grant and of its moves, as in "n1 n2 0>n3".
  std::string granted_nodes() const {
    std::string text;
    const Grant& last = *grant(holder);
    for (const GrantedServer& server : last.servers) text += (text.empty() ? "" : " ") + server.lease.node();
    for (const GrantedMove& move : last.moves)
      text += " " + std::to_string(move.server) + ">" + move.to.lease.node();
    return text;
  }
  // The address in the node's last order to move the lease; empty: it has none.
  std::string ordered(uint64_t node) const {
    const pool::NodeOrders last = orders(nodes.at(node));
    for (const auto& order : last.move()) {
      if (order.lease() == lease) return order.address();
    }
    return "";
  }
  bool told_to_end(uint64_t node) const {
    const pool::NodeOrders last = orders(nodes.at(node));
    for (const auto& order : last.end()) {
      if (order.lease() == lease) return true;
    }
    return false;
  }
  uint64_t leased_on(uint64_t node) const {
    uint64_t milli = 0;
    const auto state = core->view_node("n" + std::to_string(node));
    if (!state) return 0;
    for (const auto& gpu : state->gpus()) milli += gpu.compute_milli_leased();
    return milli;
  }
  pool::LeaseState state() const {
    auto state = core->view_lease(lease);
    if (!state) throw std::runtime_error("the lease is gone");
    return *state;
  }
  uint64_t counted_milli() const {
    pool::PoolSnapshot seen;
    core->view_tenants(*seen.mutable_tenants(), now);
    return seen.tenants(0).compute_milli();
  }
  void limit_moves(uint32_t milliseconds) {
    pool::Policy policy;
    policy.set_move_ms(milliseconds);
    if (!core->set_policy(policy, now)) throw std::runtime_error("the policy was refused");
  }
};

}  // namespace gpupool::scheduler
