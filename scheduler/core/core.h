// The scheduler's core: who waits, who has which share of which GPU, and how the nodes do. It is told what happened and when, and says
// what is to be stored and told (take()). No I/O, no clock, no threads of its own; one thread at a time.
//
// The rule that everything serves: a share is given to somebody only when nobody else can use it any more. So what a lease
// has stays taken until its node says that nothing of it is left, or the node is another process, or an operator removes it.
//
// The caller stores Effects::writes before it says anything of the same or later Effects to anybody. What is in the store makes
// another core (restore()), on which no lease is lost; those who wait come back by themselves.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <unordered_map>

#include "protocol/wire/result.h"
#include "scheduler/core/lease.h"
#include "scheduler/core/placer.h"
#include "scheduler/core/queue.h"
#include "scheduler/core/tenant.h"

namespace gpupool::scheduler {

struct ConfiguredTenant {
  std::string name;
  pool::TenantQuota quota;  // the fields that are not as usual
};

class Core {
 public:
  using MakeId = std::function<LeaseId()>;  // 16 random bytes
  using MakePlacer = std::function<std::unique_ptr<Placer>(Nodes&)>;
  Core(MakeId make_id, const MakePlacer& make_placer, Time now);
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // Once, before anything else: the id of the key that leases are signed with. Nodes that do not have it are fenced.
  void sign_with(std::string key_id) { key_id_ = std::move(key_id); }
  // Once, before anything else: all that is stored. An error names the key that makes no sense.
  Result<void> restore(const std::vector<std::pair<std::string, std::string>>& stored, Time now);
  void configure(const std::vector<ConfiguredTenant>& tenants, Time now);  // at first, and whenever it is another
  // Ends what tenants have that are not configured any more. Not at the start: another scheduler may have a newer configuration.
  void end_removed_tenants(Time now);

  // Holders. `arrived`: of the ticket, if there is one. The caller has checked tickets and secrets. Only the secret says whose a lease is
  // where resume()'s tenant is empty.
  void request(Stream stream, const std::string& tenant, const pool::Request& request, std::optional<Time> arrived, Time now);
  void resume(Stream stream, const std::string& tenant, const LeaseId& lease, Time now);
  void release(Stream stream, Time now);
  void holder_cut(Stream stream, Time now);
  // What it showed gives it no access any more: its place in the queue or its lease ends at once.
  void revoke(Stream stream, const std::string& reason, Time now);

  // Nodes.
  void attend(Stream stream, const pool::NodeReport& first, Time now);
  void report(Stream stream, const pool::NodeReport& report, Time now);
  void node_cut(Stream stream, Time now);

  // Operators. ErrorCode::unavailable: there is no such thing; invalid: why not.
  Result<void> drain(const std::string& node, const std::string& reason, bool evict, std::optional<uint32_t> grace_ms, Time now);
  Result<void> undrain(const std::string& node, Time now);
  Result<uint32_t> remove_node(const std::string& node, Time now);
  // The GPU is this node's, whoever else reports it. By its UUID.
  Result<void> trust_gpu(const std::string& node, const std::string& uuid, Time now);
  Result<LeaseId> evict(const std::string& lease, const std::string& reason, std::optional<uint32_t> grace_ms, Time now);
  Result<pool::TenantQuota> set_quota(const std::string& tenant, const pool::TenantQuota& changes, Time now);
  Result<pool::TenantQuota> clear_quota(const std::string& tenant, Time now);
  Result<pool::Policy> set_policy(const pool::Policy& changes, Time now);
  Result<std::vector<std::string>> why(const std::string& id, Time now);

  // Views (views.cc).
  const pool::Policy& policy() const { return policy_; }
  const std::map<std::string, Tenant>& tenants() const { return tenants_; }
  Result<pool::NodeState> view_node(const std::string& name) const;
  Result<pool::LeaseState> view_lease(const LeaseId& id) const;
  pool::PoolState view_pool() const;
  void view_nodes(google::protobuf::RepeatedPtrField<pool::NodeState>& out) const;
  void view_leases(google::protobuf::RepeatedPtrField<pool::LeaseState>& out) const;
  void view_queue(google::protobuf::RepeatedPtrField<pool::Waiting>& out) const;
  void view_tenants(google::protobuf::RepeatedPtrField<pool::TenantState>& out, Time now) const;

  // What has become due. To be called at least every second.
  void tick(Time now);
  // Grants what can be granted; to be called after one or more of the above.
  void schedule(Time now);
  Effects take(Time now);

 private:
  // Holders and leases (leases.cc).
  void grant(Waiter& waiter, const std::vector<Spot>& spots, Time now);
  void announce(Lease& lease, Time now);
  void end(Lease& lease, pool::Ended::Why why, const std::string& reason, uint32_t grace_ms, Time now);
  void tell_end(Lease& lease, Time now, bool over);
  void part_gone(Lease& lease, Node& node, Time now);
  Lease& adopt(Lease lease, Time now);
  void note_labels(const Lease& lease, const Node& node, bool there);
  void uncount(Lease& lease, Time now);
  void set_deadline(Lease& lease, Time deadline);
  void due(Lease& lease, Time now);
  Lease* held_by(Stream stream);
  Lease* find_lease(const LeaseId& id);
  void refuse(Stream stream, Refusal::Kind kind, const std::string& reason);
  Tenant& tenant(const std::string& name);

  Result<Node*> known_node(const std::string& name);
  Result<LeaseId> lease_called(const std::string& text) const;
  std::vector<std::string> why(const Lease& lease, Time now) const;
  // Describes the latest ended lease for which `matches` holds; null if none is known.
  template <class Matches>
  std::optional<std::vector<std::string>> why_over(Matches matches, Time now) const;

  // Nodes (nodes.cc).
  void take_report(Node& node, const pool::NodeReport& report, Time now);
  void take_inventory(Node& node, const pool::Inventory& inventory, Time now, std::map<std::string, Claim> claims = {});
  void judge_claims(const std::string& uuid);  // claims.cc
  void notice_pause(Time now);
  void check_node(Node& node, Time now);
  void forget_leases(Node& node, const std::string& reason, Time now);
  void changed(Node& node, bool more_free);
  void answer(const Node& node) { to_answer_.insert(node.name()); }
  pool::NodeOrders orders(const Node& node, Time now) const;

  // Decisions (schedule.cc).
  bool fits_quota(const Tenant& tenant, const Demand& demand) const;
  void refuse_request(Stream stream, const std::string& tenant, const pool::Request& request, Refusal::Kind kind, const std::string& why);
  const std::optional<std::string>& never_places(const Demand& demand, const std::string& shape);
  void refuse_impossible();
  // Nodes register only once they hear of this scheduler, so a request that fits no known node is not refused before. The store does not
  // shorten this: a node may have been added while no scheduler ran.
  int64_t settling_ms() const { return 5 * int64_t{policy_.heartbeat_ms()}; }
  bool settled(Time now) const { return now >= started_ + settling_ms(); }
  // With what depends on the present leases: what the quota leaves, and where related leases are.
  Demand demand_now(const Waiter& waiter) const;
  bool try_to_grant(Waiter& waiter, Time now);
  bool reserve(Waiter& waiter, Time now);
  void lift_reservation();
  uint64_t memory_for(const Demand& demand) const;
  void preempt(const Demand& demand, const Waiter& for_whom, Time now);
  void tell_places(Time now);
  std::vector<std::pair<Stream, uint32_t>> places() const;

  // Texts (explain.cc).
  std::optional<std::string> never_allowed(const pool::Request& request, const Tenant& tenant) const;
  // Checks the memory quota against the implied memory: a request without --memory takes the same share of memory as of compute.
  std::optional<std::string> never_within_memory(const Demand& demand, const Tenant& tenant) const;
  std::optional<std::string> why_never_places(const Demand& demand, bool with_fenced = false) const;  // null: it can be placed, sooner or later
  std::string explain(const Waiter& waiter) const;
  const Waiter* blocking_request(const Waiter& waiter) const;  // of the same tenant, which the quota has no room for; null: none

  // Restore (restore.cc).
  Result<void> restore_node(const std::string& value, Time now);
  Result<void> restore_lease(const std::string& value, Time now);

  void note(const char* event, std::vector<std::pair<const char*, std::string>> fields, Note::Level level = Note::Level::info) {
    effects_.notes.push_back({level, event, std::move(fields)});
  }

  const MakeId make_id_;
  std::string key_id_;  // empty: nodes' keys are not compared
  const Time started_;
  Time awake_;  // it was so last
  pool::Policy policy_ = default_policy();
  Nodes nodes_;
  std::unique_ptr<Placer> placer_;
  std::map<std::string, std::set<std::string>> claimants_;  // by a GPU's UUID: the nodes that report it, in their `gpus`
  std::unordered_map<Stream, std::string> node_streams_;
  PoolTotal total_;  // of all nodes that are known

  std::map<std::string, Tenant> tenants_;
  std::unordered_map<LeaseId, Lease> leases_;
  std::deque<OverLease> over_;  // the latest ended leases, in memory only
  std::unordered_map<Stream, LeaseId> holders_;
  std::map<std::pair<std::string, std::string>, LeaseId> asked_;  // by tenant and the request's id, where it has one
  std::set<std::pair<Time, LeaseId>> deadlines_;
  using Where = std::map<std::pair<std::string, std::string>, std::map<const Node*, uint32_t>>;  // tenant and label: leases by node
  Where labelled_;  // those that have it
  Where repelling_;  // those that are never beside it

  Queue queue_;
  uint64_t requests_ = 0;
  Stream head_ = 0;  // for whom something is reserved
  std::vector<Stream> heads_;  // waiting requests that have been the head, in this order; the first that reserve() finds GPUs for is the head
  std::vector<Spot> reservation_;
  std::map<std::string, Stream> blocked_;  // by tenant: the first request that its quota has no room for
  uint64_t capacity_ = 1;  // changes whenever somebody may find a place who found none
  bool dirty_ = false;     // schedule() has something to do
  bool places_changed_ = false;
  Time places_told_ = 0;
  bool settled_ = false;  // the nodes have had time to come: what fits none of them never will
  bool recheck_waiting_ = true;  // since the last refuse_impossible()
  std::unordered_map<std::string, std::optional<std::string>> never_;  // by shape, until a node changes what it has, or whether it is trusted

  pool::PoolCounters counters_;
  std::map<int, uint64_t> ended_;
  Effects effects_;
  std::set<LeaseId> dirty_leases_;  // to be written; deleted if they are not there
  std::set<std::string> dirty_nodes_;
  std::set<std::string> to_answer_;
};

}  // namespace gpupool::scheduler
