// A pool with random events and crashes, whose messages are compared with an oracle: no share is ever granted
// twice, and none is lost. Fails the test case with Catch's REQUIRE.
//
// The oracle uses only the messages that were delivered: a share is usable from the moment its client
// receives the grant, or the move, until the node's process has ended the lease, or has moved it away, or has
// died.
#pragma once
#include <random>

#include "tests/scheduler/core/books.h"
#include "tests/scheduler/core/pool.h"
#include "tests/scheduler/core/simulated_node.h"
#include "tests/support/catch.h"

namespace gpupool::scheduler {

struct SimulatedHolder {
  std::string tenant;
  pool::Request request;
  Stream stream = 0;
  LeaseId lease;
  bool connected = false;  // it has received its grant on the present stream
  Time seen = 0;           // when it was last connected
};

class Simulation {
 public:
  // With `fragments`, most requests are for one GPU and some for two on one host, most events are heartbeats,
  // and leases move to make room.
  Simulation(uint64_t seed, bool real_placement, bool fragments = false)
      : random_(seed), pool_(real_placement), fragments_(fragments) {
    for (uint64_t i = 1; i <= (fragments ? 6 : 4); ++i)
      nodes_.push_back({i, ++boots_, fragments ? 2 : static_cast<int>(i)});
    pool::Policy policy;
    policy.set_move_ms(5'000);
    policy.set_preempt_suspends(seed % 2 == 0);
    policy.set_suspend_ms(20'000);
    policy.set_resumed_run_ms(seed % 3 == 0 ? 10'000 : 0);
    if (seed % 4 < 2) {  // rare crashes, and short times, so that moves fail and nodes are lost
      crashes_ = 1'000;
      policy.set_move_ms(1'000), policy.set_heartbeat_ms(500), policy.set_node_lost_ms(3'000);
    }
    if (fragments) {
      crashes_ = 3'000;
      policy.set_defragment(true), policy.set_defragment_moves(0), policy.set_defragment_bytes(0);
      policy.set_move_bytes_per_second(1'000'000'000'000), policy.set_move_silence_ms(0);
    }
    REQUIRE(pool_.core->set_policy(policy, pool_.now));
  }

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      step();
      settle();
    }
    finish();
  }
  const std::map<std::string, uint64_t>& notes() const { return notes_; }  // number of each event

 private:
  uint64_t pick(uint64_t below) { return std::uniform_int_distribution<uint64_t>(0, below - 1)(random_); }
  SimulatedNode& any_node() { return nodes_[pick(nodes_.size())]; }

  void step() {
    SimulatedNode& node = any_node();
    if (fragments_ && pick(3) != 0) return pass_time(1'500);
    switch (pick(16)) {
      case 0:
      case 1:
      case 2: return new_holder();
      case 3:
      case 4: return leave();
      case 5: return cut_holder();
      case 6: return come_back();
      case 7:
      case 8:
      case 9: return node_step(node);
      case 10: return cut_node(node, pick(4) == 0);
      case 11: return register_node(node);
      case 12: return pass_time(pick(4) == 0 ? 40'000 : 2'000);
      case 13: return fragments_ && pick(8) != 0 ? come_back() : operate(node);
      case 14: return report_unissued_token(node);
      default: return use(node);
    }
  }

  void pass_time(uint64_t most) {
    pool_.now += static_cast<Time>(pick(most));
    for (auto& one : nodes_) {
      if (fragments_ && pick(2) == 0) use(one);
      if (one.stream != 0 && pick(8) != 0) node_step(one);
      if (fragments_ && one.stream == 0) register_node(one);
    }
    pool_.core->tick(pool_.now);
  }

  void new_holder() {
    if (holders_.size() > (fragments_ ? 13u : 30u)) return;
    SimulatedHolder& holder = holders_.emplace_back();
    holder.tenant = pick(2) ? "a" : "b";
    if (fragments_) {
      holder.request = pick(4) == 0 ? ask(2) : ask(1, pick(4) == 0 ? 500 : 1000);
      holder.request.set_one_host(holder.request.gpus() == 2);
      holder.request.set_id(boot_id(++requests_));
      return come_back(holder);
    }
    constexpr uint32_t kMilli[] = {1000, 1000, 500, 250, 333, 1};
    holder.request = ask(static_cast<uint32_t>(pick(4) == 0 ? 1 + pick(5) : 1), kMilli[pick(6)],
                         pick(3) == 0 ? pick(16) * kGiB : 0);
    holder.request.set_priority(static_cast<lease::Priority>(pick(3)));
    holder.request.set_one_host(pick(3) == 0);
    holder.request.set_cpu_milli(static_cast<uint32_t>(pick(3) == 0 ? pick(12'000) : 0));
    if (pick(5) == 0) holder.request.add_labels("x");
    if (pick(5) == 0) holder.request.add_apart_from("x");
    come_back(holder);
  }
  void come_back() {
    for (auto& holder : holders_) {
      if (holder.stream == 0) return come_back(holder);
    }
  }
  void come_back(SimulatedHolder& holder) {
    holder.stream = ++pool_.streams;
    holder.connected = false;
    if (holder.lease.empty())
      pool_.core->request(holder.stream, holder.tenant, holder.request, {}, pool_.now);
    else
      pool_.core->resume(holder.stream, holder.tenant, holder.lease, pool_.now);
  }
  SimulatedHolder* connected() {
    std::vector<SimulatedHolder*> all;
    for (auto& holder : holders_) {
      if (holder.stream != 0) all.push_back(&holder);
    }
    return all.empty() ? nullptr : all[pick(all.size())];
  }
  void leave() {
    if (SimulatedHolder* const holder = connected()) pool_.core->release(holder->stream, pool_.now);
  }
  void cut_holder() {
    SimulatedHolder* const holder = connected();
    if (!holder) return;
    pool_.core->client_disconnected(std::exchange(holder->stream, 0), pool_.now);
    if (holder->connected) holder->seen = pool_.now;
  }

  pool::NodeReport report_of(SimulatedNode& node) {
    pool::NodeReport report;
    report.set_ready(pick(20) != 0);
    report.set_now_ms(pool_.now);
    for (const LeaseId& id : node.sessions) {
      pool::LeaseUse& use = *report.add_leases();
      use.set_lease(id);
      use.set_sessions(1);
    }
    report.mutable_suspension_room()->set_memory_bytes(64 * kGiB);
    for (const auto& [id, told] : node.suspensions) *report.add_suspensions() = told;
    for (const LeaseId& id : std::exchange(node.answers, {})) {
      if (node.sessions.contains(id)) continue;
      pool::LeaseUse& use = *report.add_leases();
      use.set_lease(id);
      use.set_void_serial(node.ended[id]);
    }
    return report;
  }
  void register_node(SimulatedNode& node) {
    if (!node.alive) {
      node.alive = true;
      node.boot = ++boots_;
    }
    if (node.stream != 0) return;
    pool::NodeReport report = first_report(node.number, node.boot, node.gpus);
    report.MergeFrom(report_of(node));
    pool_.core->register_node(node.stream = ++pool_.streams, report, pool_.now);
  }
  void node_step(SimulatedNode& node) {
    for (const auto& orders : node.inbox) {
      for (const auto& order : orders.end()) {
        if (order.grace_ms() > 0 && pick(2)) continue;
        node.sessions.erase(order.lease());
        node.usable.erase(order.lease());
        node.suspended.erase(order.lease());
        node.suspensions.erase(order.lease());
        node.ended[order.lease()] = UINT64_MAX;
        node.answers.insert(order.lease());
      }
      for (const auto& order : orders.move()) {
        if (pick(2)) move_sessions(node, order);
      }
      node.suspend_sessions(orders, [this](uint64_t below) { return pick(below); });
    }
    node.inbox.clear();
    if (node.stream != 0) pool_.core->report(node.stream, report_of(node), pool_.now);
  }
  // Executes the order if the lease's client has a token for the other node, or no session is here. Some
  // orders are out of date by now.
  void move_sessions(SimulatedNode& node, const pool::MoveLease& order) {
    if (node.sessions.contains(order.lease())) {
      // Sessions of some leases can hardly move.
      if (static_cast<unsigned char>(order.lease()[0]) % 2 == 0 && pick(16) != 0) return;
      SimulatedNode& to = nodes_[static_cast<uint64_t>(order.address().at(13) - '1')];  // tcp://10.0.0.N:9700
      if (!to.usable.contains(order.lease())) return;
      to.sessions.insert(order.lease());
    }
    node.sessions.erase(order.lease());
    uint64_t& last = node.ended[order.lease()];
    last = std::max(last, order.serial());
    const auto token = node.usable.find(order.lease());
    if (token != node.usable.end() && token->second.serial() <= last) node.usable.erase(token);
    node.answers.insert(order.lease());
  }
  void cut_node(SimulatedNode& node, bool dies) {
    if (node.stream != 0) pool_.core->node_disconnected(std::exchange(node.stream, 0), pool_.now);
    node.inbox.clear();
    if (!dies) return;
    node.die();
  }
  // Opens sessions on the node with random usable tokens.
  void use(SimulatedNode& node) {
    for (const auto& [id, token] : node.usable) {
      if (pick(2)) node.sessions.insert(id);
    }
  }
  void report_unissued_token(SimulatedNode& node) {
    if (node.stream == 0 || pick(4) != 0) return;
    pool::NodeReport report = report_of(node);
    pool::LeaseUse& use = *report.add_leases();
    use.set_lease(LeaseId(16, 'q'));
    use.set_sessions(1);
    pool_.core->report(node.stream, report, pool_.now);
  }
  void operate(SimulatedNode& node) {
    const std::string name = "n" + std::to_string(node.number);
    switch (pick(8)) {
      case 0:
        (void)pool_.core->drain(name, "", pick(2), pick(2) ? std::optional(0u) : std::nullopt, pool_.now,
                                pick(2));
        break;
      case 1:
      case 2: (void)pool_.core->undrain(name, pool_.now); break;
      case 3:
        if (node.alive) break;  // operators remove dead nodes only
        (void)pool_.core->remove_node(name, pool_.now);
        break;
      default: {
        pool::PoolSnapshot seen;
        pool_.core->view_leases(*seen.mutable_leases());
        if (seen.leases_size() == 0) return;
        const auto& lease = seen.leases(static_cast<int>(pick(static_cast<uint64_t>(seen.leases_size()))));
        if (pick(4) == 0) return (void)pool_.core->evict(lease.id(), "", 0, pool_.now);
        if (pick(6) == 0) return (void)pool_.core->suspend_lease(lease.id(), pool_.now);
        if (lease.has_suspension() && pick(2)) return (void)pool_.core->resume_lease(lease.id(), pool_.now);
        const std::string from =
            lease.parts(static_cast<int>(pick(static_cast<uint64_t>(lease.parts_size())))).node();
        (void)pool_.core->move(lease.id(), from, pick(2) ? name : "", pool_.now);
      }
    }
  }

  void settle() {
    if (pick(2)) pool_.core->schedule(pool_.now);
    Effects effects = pool_.core->take(pool_.now);
    const uint64_t fate = pick(crashes_);
    if (fate == 0) return crash();  // before storing
    pool_.write(effects);
    for (const Note& note : effects.notes) ++notes_[note.event];
    if (fate == 1) return crash();  // after storing, before sending
    for (const ClientMessage& received : effects.clients) receive(received);
    for (const NodeMessage& received : effects.nodes) {
      for (auto& node : nodes_) {
        if (node.stream != received.stream) continue;
        if (received.refusal)
          node.stream = 0;
        else
          node.inbox.push_back(received.orders);
      }
    }
    check();
    if (fate == 2) crash();
  }

  void crash() {
    size_t leases = 0;
    for (const auto& [key, value] : pool_.store) leases += key.starts_with("lease/");
    pool_.start();
    REQUIRE(pool_.core->view_pool().leases() == leases);
    for (auto& holder : holders_) {
      holder.stream = 0;
      const auto lease = pool_.core->view_lease(holder.lease);
      if (lease && !lease->ending()) holder.seen = pool_.now;  // a restart starts the hold time again
    }
    for (auto& node : nodes_) node.stream = 0;
    check();
  }

  void receive(const ClientMessage& received) {
    const auto holder = std::find_if(holders_.begin(), holders_.end(),
                                     [&](const auto& one) { return one.stream == received.stream; });
    if (holder == holders_.end()) return;
    if (const auto* const grant = std::get_if<Grant>(&received.message)) {
      REQUIRE((holder->lease.empty() || holder->lease == grant->lease));
      holder->lease = grant->lease;
      holder->connected = true;
      holder->seen = pool_.now;
      uint32_t gpus = 0;
      const auto accept = [&](const GrantedServer& server) {
        SimulatedNode& node = nodes_[std::stoull(server.lease.node().substr(1)) - 1];
        const auto ended = node.ended.find(grant->lease);
        const bool is_void = ended != node.ended.end() && server.lease.serial() <= ended->second;
        if (node.alive && server.lease.boot() == boot_id(node.boot) && !is_void)
          (node.is_suspended(grant->lease) ? node.suspended : node.usable)[grant->lease] = server.lease;
      };
      for (const GrantedServer& server : grant->servers) {
        gpus += static_cast<uint32_t>(server.lease.shares_size());
        accept(server);
      }
      REQUIRE(gpus == holder->request.gpus());
      for (const GrantedMove& move : grant->moves) {
        REQUIRE(move.to.lease.shares_size() == grant->servers.at(move.server).lease.shares_size());
        accept(move.to);
      }
    }
    if (const auto* const ended = std::get_if<pool::Ended>(&received.message)) {
      if (ended->why() == pool::Ended::EXPIRED && ended->reason().starts_with("the client was disconnected"))
        REQUIRE(pool_.now >= holder->seen + 30'000);
    }
    if (received.last) holders_.erase(holder);
  }

  void check() {
    pool::PoolSnapshot seen;
    pool_.core->view_nodes(*seen.mutable_nodes());
    for (const SimulatedNode& node : nodes_) {
      std::map<std::string, Amount> used;
      for (const auto& [id, token] : node.usable) {
        for (const auto& share : token.shares())
          used[share.gpu_uuid()] += {share.compute_milli(), share.memory_bytes()};
      }
      for (const auto& [uuid, amount] : used) REQUIRE(amount.within({1000, 16 * kGiB}));
      for (const auto& state : seen.nodes()) {
        if (state.name() != "n" + std::to_string(node.number)) continue;
        for (const auto& gpu : state.gpus()) {
          REQUIRE(gpu.compute_milli_leased() <= 1000);
          REQUIRE(gpu.memory_bytes_leased() <= gpu.memory_bytes());
          REQUIRE(used[gpu.uuid()].within({gpu.compute_milli_leased(), gpu.memory_bytes_leased()}));
        }
      }
    }
    check_books(*pool_.core, pool_.now);
  }

  // Ends all clients and checks that nothing is left.
  void finish() {
    for (int round = 0; round < 200 && (!holders_.empty() || pool_.core->view_pool().leases() > 0); ++round) {
      pool_.now += 2'000;
      while (std::any_of(holders_.begin(), holders_.end(), [](const auto& one) { return one.stream == 0; }))
        come_back();
      for (auto& holder : holders_) pool_.core->release(holder.stream, pool_.now);
      for (auto& node : nodes_) {
        register_node(node);
        node_step(node);
      }
      pool_.core->tick(pool_.now);
      settle();
    }
    REQUIRE(holders_.empty());
    REQUIRE(pool_.core->view_pool().leases() == 0);
    REQUIRE(pool_.leased_milli() == 0);
    // A place is held for a request that may come back for 30 s.
    pool_.now += 31'000;
    pool_.core->tick(pool_.now);
    pool_.core->schedule(pool_.now);
    pool::PoolSnapshot seen;
    pool_.core->view_nodes(*seen.mutable_nodes());
    for (const auto& node : seen.nodes()) {
      for (const auto& gpu : node.gpus()) REQUIRE(gpu.compute_milli_reserved() == 0);
    }
    pool_.core->view_tenants(*seen.mutable_tenants(), pool_.now);
    for (const auto& tenant : seen.tenants()) {
      REQUIRE(tenant.compute_milli() == 0);
      REQUIRE(tenant.memory_bytes() == 0);
      REQUIRE(tenant.waiting() == 0);
    }
    for (const auto& [key, value] : pool_.store) REQUIRE(!key.starts_with("lease/"));
  }

  std::mt19937_64 random_;
  uint64_t boots_ = 0, requests_ = 0;
  TestPool pool_;
  const bool fragments_;
  std::vector<SimulatedNode> nodes_;
  std::vector<SimulatedHolder> holders_;
  std::map<std::string, uint64_t> notes_;
  uint64_t crashes_ = 40;  // one in so many steps, at each of three instants
};

}  // namespace gpupool::scheduler
