// The scheduler's core: a deterministic state machine over the queue, the leases and the nodes. The service
// (service/engine.h) passes it events together with the current time, and take() returns the resulting
// Effects: store writes, messages and log lines. It does no I/O, reads no clock and starts no thread; one
// thread at a time may call it. Expected failures are Results.
//
// Invariant: a GPU share is granted only when no earlier lease can still use it. Therefore the share of an
// ended lease stays allocated until its node reports that no session of the lease is left, the node's poold
// has been restarted, or an operator removes the node. The same holds for each node that a lease moves away
// from (moves.cc).
//
// The caller must store Effects::writes before it sends any message of the same or of later Effects.
// restore() rebuilds a core from the store without losing a lease. Waiting requests are not stored; their
// clients request again.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <unordered_map>

#include "common/result.h"
#include "scheduler/core/claims.h"
#include "scheduler/core/defragmentation.h"
#include "scheduler/core/followers.h"
#include "scheduler/core/lease_table.h"
#include "scheduler/core/placer.h"
#include "scheduler/core/queue.h"
#include "scheduler/core/tenant.h"
#include "scheduler/placement/defragment.h"

namespace gpupool::scheduler {

class LeaseRecord;  // records.proto
class PartRecord;

struct ConfiguredTenant {
  std::string name;
  pool::TenantQuota quota;  // only the fields that differ from default_quota()
  std::vector<QuotaWindow> windows = {};
  std::vector<Budget> budgets = {};
};

class Core {
 public:
  using MakeId = std::function<LeaseId()>;  // 16 random bytes
  using MakePlacer = std::function<std::unique_ptr<Placer>(Nodes&)>;
  Core(MakeId make_id, const MakePlacer& make_placer, Time now);
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // Sets the id of the key that lease tokens are signed with. Nodes that report other keys only are fenced.
  // Call once, before any other member.
  void sign_with(std::string key_id) { key_id_ = std::move(key_id); }
  // Sets the wall clock's distance from the core's clock. Call before restore(). Quotas by time of day,
  // budgets' periods and the hours of usage follow the wall clock.
  void set_calendar(Time offset) { calendar_offset_ = offset; }
  // The wall clock was set: `step` is how much further ahead of the core's clock it is now. No lease is
  // charged for the step.
  void clock_stepped(Time step, Time now);
  // Restores the state from all records of the store. Call once, after sign_with() and before any other
  // member but set_calendar(). ErrorCode::invalid names the key of the unusable record.
  Result<void> restore(const std::vector<std::pair<std::string, std::string>>& stored, Time now);
  // Replaces the list of configured tenants, and the prices by which their budgets are compared with what was
  // used. Call at the start and after each change of the configuration.
  void configure(const std::vector<ConfiguredTenant>& tenants, Prices prices, Time now);
  // Evicts the leases and refuses the waiting requests of tenants that are no longer configured. Do not call
  // at the start: the previous leader may have had a newer configuration.
  void end_removed_tenants(Time now);

  // Lease clients (holders). The caller has already verified tickets and lease secrets. `arrived` is the
  // arrival time in the request's ticket, if it has a valid one. An empty `tenant` of resume() skips the
  // check that the lease belongs to this tenant.
  void request(Stream stream, const std::string& tenant, const pool::Request& request,
               std::optional<Time> arrived, Time now);
  void resume(Stream stream, const std::string& tenant, const LeaseId& lease, Time now);
  void release(Stream stream, Time now);
  void client_disconnected(Stream stream, Time now);
  // Ends the client's lease, or removes its request from the queue, or ends its following of a lease, because
  // its token is no longer valid.
  void revoke(Stream stream, const std::string& reason, Time now);

  // Nodes. register_node() registers a node with its first report; report() is a heartbeat.
  void register_node(Stream stream, const pool::NodeReport& first, Time now);
  void report(Stream stream, const pool::NodeReport& report, Time now);
  void node_disconnected(Stream stream, Time now);

  // Operators. ErrorCode::unavailable: no such node, tenant, lease or request. ErrorCode::invalid: the
  // message says why the command was rejected.
  // With `move`, moves the node's leases to other nodes as soon as there is room; with `evict` also, evicts
  // those that are still there after the grace. Replaces what an earlier call requested.
  Result<void> drain(const std::string& node, const std::string& reason, bool evict,
                     std::optional<uint32_t> grace_ms, Time now, bool move = false);
  Result<void> undrain(const std::string& node, Time now);
  Result<uint32_t> remove_node(const std::string& node, Time now);
  // Declares this node the owner of the GPU with this UUID, even if other nodes report the same UUID.
  Result<void> trust_gpu(const std::string& node, const std::string& uuid, Time now);
  Result<LeaseId> evict(const std::string& lease, const std::string& reason, std::optional<uint32_t> grace_ms,
                        Time now);
  // Begins to move the lease's part on node `from` to node `to`. `from` may be empty if the lease is on one
  // node; if `to` is empty, placement chooses the node.
  Result<LeaseId> move(const std::string& lease, const std::string& from, const std::string& to, Time now);
  // Begins to suspend the lease, until resume_lease() is called.
  Result<LeaseId> suspend_lease(const std::string& lease, Time now);
  // Has the lease resumed as soon as its GPUs have room; one that is not suspended yet goes on.
  Result<LeaseId> resume_lease(const std::string& lease, Time now);
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

  // Usage (usage.cc). accrue_all() brings the amounts of all leases up to now, and has them stored.
  // view_usage() visits the amounts up to now that are not in rows yet, with the keys of the rows that they
  // will have, and changes nothing.
  using VisitUsage = std::function<void(const std::string& key, int64_t hour, const pool::UsageRow& row)>;
  void accrue_all(Time now);
  void view_usage(Time now, const VisitUsage& visit) const;

  // Has entries written that are none of the core's: the rows of earlier days (service/usage_history.h).
  void write_also(std::vector<Write> writes);

  // Handles timeouts. Call at least once a second.
  void tick(Time now);
  // Grants waiting requests. Call after one or more of the calls above.
  void schedule(Time now);
  Effects take(Time now);

 private:
  // Lease clients and leases (leases.cc).
  void grant(WaitingRequest& waiter, const std::vector<GpuSlot>& slots, Time now);
  GrantedServer server_of(const Lease& lease, const LeasePart& part, Time now) const;
  Grant grant_of(const Lease& lease, Time now) const;
  void announce(Lease& lease, Time now);
  void renew(Lease& lease, Time now);
  void end(Lease& lease, pool::Ended::Why why, const std::string& reason, uint32_t grace_ms, Time now);
  void notify_end(Lease& lease, Time now, bool over);
  void enter_part(Lease& lease, LeasePart& part);
  void free_part(Lease& lease, const LeasePart& part);
  void part_gone(Lease& lease, Node& node, Time now);
  Lease& index_lease(Lease lease, Time now);
  void release_quota(Lease& lease, Time now);
  void due(Lease& lease, Time now);
  void refuse(Stream stream, Refusal::Kind kind, const std::string& reason);
  Tenant& tenant(const std::string& name);

  // Requests that get no lease of their own (followers.cc).
  std::optional<std::string> why_never(const pool::Request& request, const Tenant& whose, Time now);
  void check(Stream stream, const std::string& tenant, const pool::Request& request, Time now);
  void follow(Stream stream, const std::string& tenant, const pool::Request& request, Time now);
  void check_followers(Time now);

  // Moves of leases (moves.cc), and where to (move_places.cc).
  void begin_move(Lease& lease, size_t place, LeasePart to, Time now, const std::string& because = "");
  bool substitute(Lease& lease, size_t place, bool gone, const std::string& reason, Time now);
  void fail_move(Lease& lease, const std::string& reason, bool gone, Time now);
  void try_again(Lease& lease, size_t place);
  void forget_leaving(Lease& lease, const Node& node, Time now);
  void lease_left(Lease& lease, Node& node, Time now);
  void lose_part(Lease& lease, Node& node, const std::string& reason, bool gone, Time now);
  void gather_parts(Lease& lease, const std::string& reason, Time now);
  void check_moves(Time now);
  void move_away(Time now);
  void evict_rest(Node& node, Time now);
  void forget_failed_moves(Node& node);
  void note_move(const char* event, const Lease& lease, const Node& from, const Node& to, Time since,
                 const std::string& reason, Time now);
  static void order_to_move(const Lease& lease, const Node& node, pool::NodeOrders& orders);
  Demand demand_of(const Lease& lease, const LeasePart& part) const;
  std::optional<std::string> why_not_to(const Lease& lease, const LeasePart& part, const Demand& demand,
                                        const Node& node) const;
  Result<LeasePart> place_part(const Lease& lease, const LeasePart& part, Node* to);

  // Suspended leases (suspensions.cc).
  void reclassify(Lease& lease, const std::function<void()>& change);
  std::optional<std::string> why_not_suspend(const Lease& lease) const;
  void begin_suspension(Lease& lease, Suspension how, Time now);
  void become_suspended(Lease& lease, Time now);
  void fail_suspension(Lease& lease, const std::string& reason, Time now);
  std::optional<std::string> why_not_resume(const Lease& lease) const;
  void begin_resumption(Lease& lease, Time now);
  void become_resumed(Lease& lease, Time now);
  void order_again(Lease& lease, Suspension::State state, Time now);
  void take_suspensions(Node& node, const pool::NodeReport& report, Time now);
  void check_answers(Lease& lease, Time now);
  void check_suspensions(Time now);
  void note_suspension(const char* event, const Lease& lease, const std::string& reason, Time now);
  static void order_to_suspend(const Lease& lease, pool::NodeOrders& orders);
  void lift_kept();
  void resume_suspended(lease::Priority priority, Time now);
  void keep_for(Lease& lease, Time now);

  // Moves that make room for the head of the queue (defragment.cc).
  struct DefragMove {
    Lease* lease;
    size_t place;  // of the part in Lease::parts
    LeasePart to;
  };
  bool may_defragment(const Lease& lease, size_t place, lease::Priority priority) const;
  placement::RunningPart running_part(const Lease& lease, const LeasePart& part, lease::Priority priority,
                                      const std::unordered_map<const Node*, uint32_t>& host_of,
                                      Time now) const;
  placement::DefragLimits defragment_limits(Time now);
  bool defragment(const WaitingRequest& waiter, const Demand& demand, Time now);
  bool begin_defragmentation(const WaitingRequest& waiter, std::vector<DefragMove> moves,
                             const placement::DefragPlan& plan, Time now);
  void tick_defragmentation(Time now);
  bool makes_room_for(Stream stream) const;
  const Lease* find_unfinished(const Defragmentation::Step& step) const;
  bool has_made_room() const;
  std::optional<std::vector<GpuSlot>> place_made_for(const WaitingRequest& waiter) const;
  bool hold_place(const WaitingRequest& waiter, const Demand& demand, Time now);
  void hold_place_of_absent(lease::Priority priority);
  void find_defragmentation_of(const WaitingRequest& waiter);
  void check_defragmentation(Time now);
  void check_place_taken(Time now);
  void fail_defragmentation(const std::string& reason, Time now);
  void end_defragmentation(const char* event, const std::string& reason, Time now);
  std::string explain_defragmentation(const WaitingRequest& waiter) const;

  Result<Node*> known_node(const std::string& name);
  Result<LeaseId> lease_called(const std::string& text) const;

  // Nodes (nodes.cc).
  void take_report(Node& node, const pool::NodeReport& report, Time now);
  void take_uses(Node& node, const pool::NodeReport& report, Time now);
  void take_inventory(Node& node, const pool::Inventory& inventory, Time now,
                      std::map<std::string, Claim> claims = {});
  void judge_claims(const std::string& uuid);
  void notice_pause(Time now);
  void check_node(Node& node, Time now);
  void set_lost(Node& node, bool lost, Time now);
  uint32_t end_leases(Node& node, const std::string& reason, Time now);
  void changed(Node& node, bool more_free);
  void answer(const Node& node) { to_answer_.insert(node.name()); }
  pool::NodeOrders orders(const Node& node, Time now) const;

  // Usage (usage.cc).
  Time calendar(Time now) const { return now + calendar_offset_; }  // milliseconds since 1970
  void begin_usage(Lease& lease, Time now);
  void accrue(Lease& lease, Time now);
  using Spend = std::function<void(int64_t day, const std::string& model, const pool::UsageAmounts& more)>;
  void advance(const Lease& lease, LeaseUsage& usage, Time until, const std::function<void()>& end_hour,
               const Spend& spend) const;
  void write_hour(Lease& lease);
  UsageHour& usage_hour(Tenant& whose, int64_t hour);
  void write_rest(const Tenant& whose, const UsageHour& hour);
  void write_rests(Time now);
  void count_reported(LeaseUsage& usage, const std::string& node) const;
  void take_counters(Node& node, const pool::NodeReport& report, Time now);
  void take_counters(Lease& lease, const Node& node, const pool::LeaseCounters& told);
  void tick_usage(Time now);
  static void add_held(const Lease& lease, LeaseUsage& usage, Time time, const Spend& spend);

  // Budgets (budgets.cc).
  void check_budgets(Time now);
  void check_budgets(Tenant& whose, Time now);
  void check_windows(Time now);
  void view_budgets(const Tenant& whose, Time now, pool::TenantState& out) const;

  // Decisions (schedule.cc).
  void refuse_request(Stream stream, const std::string& tenant, const pool::Request& request,
                      Refusal::Kind kind, const std::string& why);
  const std::optional<std::string>& never_places(const Demand& demand, const std::string& shape);
  void refuse_impossible();
  // After a start, nodes need some heartbeats to find this scheduler and register. Until then a request that
  // fits no known node stays queued instead of being refused. Nodes in the store do not shorten this time: a
  // node may have been added while no scheduler ran.
  int64_t settling_ms() const { return 5 * int64_t{policy_.heartbeat_ms()}; }
  bool settled(Time now) const { return now >= started_ + settling_ms(); }
  // Returns the demand including the state that depends on current leases: the memory left in the tenant's
  // quota, and the nodes of the leases named by `near` and `apart_from`.
  Demand demand_now(const WaitingRequest& waiter) const;
  bool try_to_grant(WaitingRequest& waiter, Time now);
  // Tries the requests of one priority; false: so many have failed that no more are tried.
  bool schedule_priority(lease::Priority priority, Stream head, const std::vector<GpuSlot>& before,
                         uint32_t& failed, Time now);
  void note_reservation(Stream head, const std::vector<GpuSlot>& before);
  bool reserve(WaitingRequest& waiter, Time now);
  void reserve_slots(std::vector<GpuSlot> slots, const Demand& demand);
  void lift_reservation();
  // Preemption (preempt.cc).
  void preempt(const Demand& demand, const WaitingRequest& for_whom, Time now);
  void preempt_gpu(const GpuSlot& slot, const Amount& need, const std::string& reason, Time now);
  void preempt_host(Node& node, const HostAmount& need, const std::string& reason, Time now);
  template <class Helps>
  bool preempt_one(const Node& node, Helps helps, const std::string& reason, Time now);
  void send_places(Time now);
  std::vector<std::pair<Stream, uint32_t>> places() const;

  void count_moves(const Node& node, pool::NodeState& out) const;  // views.cc

  // Texts (explain.cc).
  std::string explain(const WaitingRequest& waiter) const;
  std::string explain_quota(const WaitingRequest& waiter, const WaitingRequest* before) const;
  std::string explain_reservation() const;
  std::vector<std::string> explain(const Lease& lease, Time now) const;
  // Returns the tenant's earlier request that exceeds the quota and blocks this one; null if there is none.
  const WaitingRequest* blocking_request(const WaitingRequest& waiter) const;

  // Restore (records.cc).
  Result<void> restore_node(const std::string& value, Time now);
  Result<void> restore_lease(const std::string& value, Time now);
  Result<void> restore_moves(const LeaseRecord& record, Lease& lease);
  static bool restore_suspension(const LeaseRecord& record, Lease& lease);
  Result<LeasePart> restore_part(const PartRecord& stored);
  Result<void> restore_defragmentation(const std::string& value, Time now);
  std::optional<std::string> defragmentation_record() const;

  void note(const char* event, std::vector<std::pair<const char*, std::string>> fields,
            Note::Level level = Note::Level::info) {
    effects_.notes.push_back({level, event, std::move(fields)});
  }

  const MakeId make_id_;
  std::string key_id_;  // empty: nodes' keys are not compared
  const Time started_;
  Time last_tick_;  // time of the last notice_pause()
  pool::Policy policy_ = default_policy();
  Nodes nodes_;
  std::unique_ptr<Placer> placer_;
  Claims claims_{nodes_};
  std::unordered_map<Stream, std::string> node_streams_;
  PoolTotal total_;  // over all known nodes

  std::map<std::string, Tenant> tenants_;
  Prices prices_;
  LeaseTable leases_;
  Followers followers_;
  std::set<LeaseId> moving_;  // leases with Lease::move
  std::set<LeaseId> timed_;   // leases with Lease::suspension or Lease::keeps_until
  // Suspended leases for which room is kept, by priority; and tenants whose next quota is for one of these.
  std::map<int, std::set<LeaseId>> kept_for_;
  std::set<Node*> kept_on_;  // their nodes
  std::set<std::string> resume_first_;

  Queue queue_;
  uint64_t requests_ = 0;
  Stream head_ = 0;  // the request that `reservation_` is for; 0: none
  // Waiting requests that are or were the head, oldest first. The first one that reserve() finds GPUs for
  // becomes the head again.
  std::vector<Stream> heads_;
  std::vector<GpuSlot> reservation_;
  std::optional<Defragmentation> defragmentation_;
  std::deque<DefragmentationSpent> defragmentation_spent_;  // within the last hour, oldest first
  Time defragment_at_ = 0;                                  // earliest time of the next search
  // Earliest time at which tick() has the queue looked at again, for a search.
  Time defragment_tick_at_ = 0;
  std::map<std::string, Stream> blocked_;  // tenant -> its first request that exceeds its quota
  Time usage_at_ = 0;                      // when tick_usage() looks for usage to store
  Time calendar_offset_ = 0;
  uint64_t capacity_ = 1;  // version; incremented when a request that did not fit before may fit now
  bool dirty_ = false;     // schedule() has something to do
  bool places_changed_ = false;
  Time places_sent_at_ = 0;
  bool settled_ = false;         // settling_ms() has passed
  bool recheck_waiting_ = true;  // refuse_impossible() must run again
  // Cache of why_never_places() by shape; cleared when a node's inventory, condition or withheld GPUs change.
  std::unordered_map<std::string, std::optional<std::string>> impossible_;

  pool::PoolCounters counters_;
  std::map<int, uint64_t> ended_;
  Effects effects_;
  // Records to write at the next take(); the record is deleted if the object no longer exists.
  std::set<LeaseId> dirty_leases_;
  std::set<std::string> dirty_nodes_;
  std::set<std::string> dirty_spending_;
  bool dirty_defragmentation_ = false;
  std::set<std::string> to_answer_;
};

}  // namespace gpupool::scheduler
