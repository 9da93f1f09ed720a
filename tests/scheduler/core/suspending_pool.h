// Fixture for tests of suspended leases: a pool whose nodes answer orders to suspend and to resume as the
// test says.
#pragma once
#include "tests/scheduler/core/books.h"
#include "tests/scheduler/core/pool.h"

namespace gpupool::scheduler {

using Answer = pool::LeaseSuspension;

inline LeaseId from_digits(const std::string& hexadecimal) {
  LeaseId id;
  for (size_t i = 0; i < hexadecimal.size(); i += 2)
    id += static_cast<char>(std::stoul(hexadecimal.substr(i, 2), nullptr, 16));
  return id;
}

struct SuspendingPool : TestPool {
  std::map<uint64_t, Stream> nodes;
  uint64_t room = 64 * kGiB;
  bool lies = false;                     // leases that are suspended answer as the test says, too
  std::map<LeaseId, uint32_t> sessions;  // on each node; default: one

  // Registers nodes n1, n2, ... with these numbers of GPUs.
  explicit SuspendingPool(const std::vector<int>& gpus) {
    for (size_t i = 0; i < gpus.size(); ++i) add_node(i + 1, 100 + i, gpus[i]);
    report_all();
  }
  void add_node(uint64_t number, uint64_t boot, int gpus) {
    nodes[number] = register_node(number, boot, gpus);
  }
  void set(const std::function<void(pool::Policy&)>& change) {
    pool::Policy policy;
    change(policy);
    if (!core->set_policy(policy, now)) throw std::runtime_error("the policy was refused");
  }
  void preempt_by_suspending() {
    set([](pool::Policy& policy) { policy.set_preempt_suspends(true); });
  }
  Stream ask_for(uint32_t gpus, lease::Priority priority, uint32_t milli = 1000,
                 const std::string& of = "a") {
    pool::Request wish = ask(gpus, milli);
    wish.set_priority(priority);
    return request(wish, of);
  }
  // Sends a report of the node with a session of each lease there; `answer`: to the last order.
  void report_on(uint64_t node, std::optional<Answer::State> answer = {}, const std::string& reason = "",
                 uint64_t earlier = 0) {
    pool::NodeReport report;
    report.set_ready(true);
    report.set_now_ms(now);
    if (room != UINT64_MAX) report.mutable_suspension_room()->set_memory_bytes(room);
    google::protobuf::RepeatedPtrField<pool::LeaseState> leases;
    core->view_leases(leases);
    for (const auto& lease : leases) {
      if (lease.parts(0).node() != "n" + std::to_string(node) &&
          (lease.parts_size() < 2 || lease.parts(1).node() != "n" + std::to_string(node)))
        continue;
      pool::LeaseUse& use = *report.add_leases();
      use.set_lease(from_digits(lease.id()));
      const auto known = sessions.find(use.lease());
      use.set_sessions(known == sessions.end() ? 1 : known->second);
      if (use.sessions() == 0) report.mutable_leases()->RemoveLast();
    }
    const pool::NodeOrders last = orders(nodes.at(node));
    for (const auto& order : last.suspend()) {
      if (!answer) continue;
      Answer& told = *report.add_suspensions();
      told.set_lease(order.lease());
      told.set_number(order.number() - earlier);
      const auto state = core->view_lease(order.lease());
      const bool stays = state && state->suspension().state() == pool::LeaseStandstill::SUSPENDED &&
                         state->has_suspension() && !lies;
      told.set_state(stays ? Answer::SUSPENDED : *answer);
      told.set_reason(reason);
      told.set_bytes(told.state() == Answer::SUSPENDED ? 5 * kGiB : 0);
      told.set_sessions(told.state() == Answer::SUSPENDED);
    }
    core->report(nodes.at(node), report, now);
    settle();
    check_books(*core, now);
  }
  void report_all() {
    for (const auto& [number, stream] : nodes) report_on(number);
  }
  void pass_with_reports(Time time) {
    for (; time > 0; time -= 1000) {
      pass(1000);
      report_all();
    }
  }
  std::string id_of(Stream holder) const { return lease::hexadecimal(grant(holder)->lease); }
  Result<LeaseId> suspend(Stream holder) {
    auto done = core->suspend_lease(id_of(holder), now);
    settle();
    check_books(*core, now);
    return done;
  }
  Result<LeaseId> resume(Stream holder) {
    auto done = core->resume_lease(id_of(holder), now);
    settle();
    check_books(*core, now);
    return done;
  }
  pool::LeaseState state(Stream holder) const {
    auto state = core->view_lease(grant(holder)->lease);
    if (!state) throw std::runtime_error("the lease is gone");
    return *state;
  }
  bool is_in(Stream holder, pool::LeaseStandstill::State wanted) const {
    const pool::LeaseState now_in = state(holder);
    return now_in.has_suspension() && now_in.suspension().state() == wanted;
  }
  bool runs(Stream holder) const { return !state(holder).has_suspension() && !state(holder).ending(); }
  // The last order for the lease: "suspend", "resume", or "" if there is none.
  std::string ordered(uint64_t node, Stream holder) const {
    const pool::NodeOrders last = orders(nodes.at(node));
    for (const auto& order : last.suspend()) {
      if (order.lease() == grant(holder)->lease) return order.resume() ? "resume" : "suspend";
    }
    return "";
  }
  // The holder's tenant's use of its quota.
  pool::TenantState tenant(const std::string& name) const {
    google::protobuf::RepeatedPtrField<pool::TenantState> all;
    core->view_tenants(all, now);
    for (const auto& one : all) {
      if (one.name() == name) return one;
    }
    return {};
  }
  // Suspends a lease on n1, by an operator.
  void suspend_fully(Stream holder) {
    if (!suspend(holder)) throw std::runtime_error("the lease cannot be suspended");
    report_on(1, Answer::SUSPENDED);
  }
  // The client goes, and the node has nothing of its lease any more.
  void leave(Stream holder, uint64_t node) {
    const LeaseId id = grant(holder)->lease;
    core->release(holder, now);
    settle();
    report(nodes.at(node), {{id, 0}});
    report_on(node);
  }
};

}  // namespace gpupool::scheduler
