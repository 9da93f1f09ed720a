// Fixture for tests of defragmentation: TestPool with leases that leave a GPU free here and there, nodes that
// send heartbeats with their sessions, and shorthands for the ends of moves.
#pragma once
#include <algorithm>

#include "tests/scheduler/core/pool.h"

namespace gpupool::scheduler {

// Returns a policy that allows defragmentation. A move of 16 GiB takes 19.2 s: 17.2 s of copying and 2 s of
// silence.
inline pool::Policy defragmenting() {
  pool::Policy policy;
  policy.set_defragment(true);
  return policy;
}

inline pool::Request on_one_host(uint32_t gpus) {
  pool::Request request = ask(gpus);
  request.set_one_host(true);
  return request;
}

struct FragmentedPool : TestPool {
  std::map<uint64_t, Stream> nodes;
  std::map<uint64_t, std::pair<uint64_t, int>> processes;  // boot and GPUs of each node
  std::map<uint64_t, std::map<LeaseId, uint32_t>> sessions;
  std::vector<Stream> holders;  // of leases that have not left, oldest first

  // Node n1 has a lease of one GPU on each of `moves` GPUs; each of as many other nodes has two GPUs, one of
  // which has a lease with a priority that keeps it there. All have run for two minutes. With `moves` 1, n1
  // has a second GPU, which is free. With 0 the pool is empty.
  explicit FragmentedPool(uint32_t moves, const pool::Policy& policy = defragmenting()) {
    if (moves > 0) add_node(1, 101, static_cast<int>(std::max(2u, moves)));
    for (uint32_t i = 0; i < moves; ++i) start_lease(ask(1));
    const Stream filler = moves == 1 ? start_lease(ask(1)) : 0;
    for (uint32_t i = 0; i < moves; ++i) {
      add_node(2 + i, 102 + i, 2);
      pool::Request fixed = ask(1);
      fixed.set_priority(lease::LATENCY_CRITICAL);
      start_lease(fixed);
      const Stream next = start_lease(ask(1));  // so that the next one is on the next node
      fillers_.push_back(next);
    }
    if (filler != 0) fillers_.push_back(filler);
    for (const Stream one : fillers_) leave(one);
    live(120);
    set_policy(policy);
  }

  void set_policy(const pool::Policy& policy) {
    if (!core->set_policy(policy, now)) throw std::runtime_error("the policy was refused");
    settle();
  }
  void add_node(uint64_t number, uint64_t boot, int gpus, uint64_t memory = 16 * kGiB) {
    processes[number] = {boot, gpus};
    sessions[number].clear();
    nodes[number] = register_node(number, boot, gpus, memory);
  }
  // A client gets a lease and begins a session.
  Stream start_lease(const pool::Request& wish) {
    const Stream holder = request(wish);
    if (!grant(holder)) throw std::runtime_error("no room for the lease");
    for (const GrantedServer& server : grant(holder)->servers)
      sessions[std::stoull(server.lease.node().substr(1))][grant(holder)->lease] = 1;
    holders.push_back(holder);
    return holder;
  }
  // The client releases its lease, and all nodes report that they have ended it.
  void leave(Stream holder) {
    const LeaseId lease = grant(holder)->lease;
    core->release(holder, now);
    settle();
    for (auto& [node, uses] : sessions) uses[lease] = 0;
    beat();
    for (auto& [node, uses] : sessions) uses.erase(lease);
    holders.erase(std::remove(holders.begin(), holders.end(), holder), holders.end());
  }
  void beat() {
    for (const auto& [node, stream] : nodes) {
      const auto& uses = sessions[node];
      report(stream, {uses.begin(), uses.end()});
    }
  }
  void live(int seconds) {
    for (; seconds > 0; --seconds) {
      pass(1000);
      beat();
    }
  }
  // Crashes; the nodes and the holders return to the new leader, but no waiting request.
  void restart() {
    std::map<Stream, LeaseId> leases;
    for (const Stream holder : holders) leases[holder] = grant(holder)->lease;
    start();
    for (const auto& [node, process] : processes)
      nodes[node] = register_node(node, process.first, process.second);
    for (Stream& holder : holders) {
      const Stream before = holder;
      core->resume(holder = ++streams, "a", leases.at(before), now);
      settle();
    }
    beat();
  }

  std::vector<LeaseId> moving() const {
    std::vector<LeaseId> found;
    for (const Stream holder : holders) {
      const LeaseId& id = grant(holder)->lease;
      const auto lease = core->view_lease(id);
      if (lease && lease->moves_size() > 0 && lease->moves(0).state() == pool::LeaseMove::MOVING)
        found.push_back(id);
    }
    return found;
  }
  uint64_t source(const LeaseId& lease) const { return number(core->view_lease(lease)->moves(0).from()); }
  // The lease's sessions are on the other node, and the first one says so.
  void end_move(const LeaseId& lease) {
    const auto state = core->view_lease(lease);
    const uint64_t from = number(state->moves(0).from()), to = number(state->moves(0).to());
    sessions[from][lease] = 0;
    sessions[to][lease] = 1;
    beat();
    sessions[from].erase(lease);
  }
  // After a move that was turned round: the sessions are back on the first node.
  void end_move_back(const LeaseId& lease) {
    const auto state = core->view_lease(lease);
    for (const auto& move : state->moves()) {
      if (move.state() != pool::LeaseMove::BACK) continue;
      sessions[number(move.from())][lease] = 0;
      beat();
      sessions[number(move.from())].erase(lease);
    }
  }

 private:
  static uint64_t number(const std::string& node) { return std::stoull(node.substr(1)); }

  std::vector<Stream> fillers_;
};

}  // namespace gpupool::scheduler
