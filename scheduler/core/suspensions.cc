// Core: suspended leases (docs/adr/0038-suspended-sessions.md).
//
// An order to a lease's nodes has a number, and only answers with the number of the last order count. When
// all nodes have answered that the lease is suspended, its shares are free, for other leases and in its
// tenant's quota; the lease itself still counts in the quota. It is resumed on the same GPUs, so these are
// kept for it against requests of its own or a lower priority. If one node cannot suspend it, it goes on
// everywhere.
#include <algorithm>

#include "common/text/printable.h"
#include "common/text/units.h"
#include "protocol/control/node_condition.h"
#include "protocol/lease/token.h"
#include "scheduler/core/core.h"
#include "scheduler/core/preemption.h"

namespace gpupool::scheduler {
namespace {

using State = Suspension::State;

constexpr int kHeartbeatsUntilAnswer = 3;
constexpr int kMostAnswers = 65'536;

uint64_t stored_bytes(const Lease& lease) {
  uint64_t bytes = 0;
  for (const LeasePart& part : lease.parts) bytes += part.suspended.bytes();
  return bytes;
}

// The lease counts in its tenant's quota of leases all the time.
bool has_quota_for(const Tenant& tenant, const Lease& lease) {
  uint64_t milli = tenant.milli, memory = tenant.memory;
  for (const LeasePart& part : lease.parts) {
    for (const auto& share : part.shares) milli += share.amount.milli, memory += share.amount.memory;
  }
  const pool::TenantQuota& quota = tenant.quota;
  return (quota.compute_milli() == 0 || milli <= quota.compute_milli()) &&
         (quota.memory_bytes() == 0 || memory <= quota.memory_bytes());
}

}  // namespace

void Core::note_suspension(const char* event, const Lease& lease, const std::string& reason, Time now) {
  const Time since = lease.suspension ? lease.suspension->since : now;
  std::string nodes;
  for (const LeasePart& part : lease.parts) nodes += (nodes.empty() ? "" : ",") + part.node->name();
  note(event, {{"lease", lease::hexadecimal(lease.id)},
               {"tenant", lease.tenant},
               {"nodes", nodes},
               {"milliseconds", std::to_string(std::max<Time>(0, now - since))},
               {"bytes", std::to_string(stored_bytes(lease))},
               {"reason", reason}});
}

// Changes what decides whether the lease's shares will soon be free, or may be preempted.
void Core::reclassify(Lease& lease, const std::function<void()>& change) {
  lease.for_each_part([&](const LeasePart& part) { remove_from_class(lease, part); });
  change();
  lease.for_each_part([&](const LeasePart& part) { add_to_class(lease, part); });
  dirty_leases_.insert(lease.id);
  dirty_ = places_changed_ = true;
}

// Returns why the lease cannot be suspended now; null if its nodes may be ordered to.
std::optional<std::string> Core::why_not_suspend(const Lease& lease) const {
  if (lease.ending) return "it is ending: " + lease.reason;
  if (lease.suspension) return "it is being suspended or resumed already";
  if (lease.is_moving() || !lease.leaving.empty()) return "it is moving to another node";
  for (const LeasePart& part : lease.parts) {
    const std::string node = "node '" + part.node->name() + "' ";
    if (part.node->silent || part.node->lost) return node + "sends no heartbeats";
    const auto& room = part.node->suspension_room;
    if (!room) return node + "has a poold that cannot suspend leases";
    if (part.sessions == 0) continue;
    uint64_t needed = bytes_of(part);
    for (const LeaseId& id : part.node->leases) {
      const Lease& other = leases_.all().at(id);
      if (other.suspension && other.suspension->state == State::suspending)
        needed += bytes_of(*other.part_on(*part.node));
    }
    const uint64_t most = std::max(room->memory_bytes(), room->disk_bytes());
    if (most == 0)
      return node +
             "has no room for suspended sessions (poold's --host-memory-for-suspended-mib, "
             "--suspended-folder)";
    if (needed > most)
      return node + "has room for " + bytes_text(most) + " of suspended sessions, and " + bytes_text(needed) +
             " may be needed";
  }
  return std::nullopt;
}

// Orders the lease's nodes anew.
void Core::order_again(Lease& lease, State state, Time now) {
  reclassify(lease, [&] { lease.suspension->state = state; });
  ++lease.suspension_orders;
  lease.suspension->since = lease.suspension->timed_from = now;
  for (const LeasePart& part : lease.parts) answer(*part.node);
}

void Core::begin_suspension(Lease& lease, Suspension how, Time now) {
  reclassify(lease, [&] {
    lease.suspension = std::move(how);
    lease.keeps_until = 0;
  });
  lease.cannot_suspend.clear();
  for (LeasePart& part : lease.parts) part.suspended.Clear();
  timed_.insert(lease.id);
  order_again(lease, State::suspending, now);
  counters_.set_suspensions_begun(counters_.suspensions_begun() + 1);
  note_suspension("lease_suspending", lease, lease.suspension->because, now);
}

// No session of the lease has a worker any more, and none will before the next order: its shares are free.
void Core::become_suspended(Lease& lease, Time now) {
  note_suspension("lease_suspended", lease, lease.suspension->because, now);
  counters_.set_suspensions_done(counters_.suspensions_done() + 1);
  counters_.set_suspended_bytes(counters_.suspended_bytes() + stored_bytes(lease));
  counters_.set_suspending_ms(counters_.suspending_ms() +
                              static_cast<uint64_t>(std::max<Time>(0, now - lease.suspension->since)));
  accrue(lease, now);
  Tenant& whose = tenant(lease.tenant);
  whose.count(now);
  reclassify(lease, [&] {
    for (LeasePart& part : lease.parts) {
      for_each_allocation(part, [&](auto& allocations, const auto& amount) { allocations.used -= amount; });
      subtract_usage(part, whose);
      part.counted = part.allocated = false;
    }
    lease.suspension->state = State::suspended;
    lease.suspension->since = now;
    lease.suspension->preempted = false;
  });
  for (const LeasePart& part : lease.parts) changed(*part.node, true);
}

// A node could not suspend the lease, or not in time.
void Core::fail_suspension(Lease& lease, const std::string& reason, Time now) {
  note_suspension("lease_not_suspended", lease, reason, now);
  counters_.set_suspensions_failed(counters_.suspensions_failed() + 1);
  lease.cannot_suspend = reason;
  if (lease.suspension->preempted)
    return end(lease, pool::Ended::PREEMPTED,
               lease.suspension->because + "; the lease could not be suspended: " + reason,
               policy_.grace_ms(), now);
  lease.suspension->reason = reason;
  order_again(lease, State::resuming, now);
}

// Returns why the lease's shares cannot be allocated again now; null if they can.
std::optional<std::string> Core::why_not_resume(const Lease& lease) const {
  for (const LeasePart& part : lease.parts) {
    const Node& node = *part.node;
    if (!node.may_resume()) {
      const auto [condition, because] = node.condition();
      return "waits for node '" + node.name() + "', which is " + pool::text_of(condition) +
             (because.empty() ? "" : " (" + because + ")");
    }
    for (const auto& share : part.shares) {
      const Gpu& gpu = node.gpus[share.gpu];
      if (!share.amount.within(gpu.allocations.spare()))
        return "waits for room on GPU " + std::to_string(share.gpu) + " of node '" + node.name() + "'" +
               (gpu.withheld_because.empty() ? "" : ": " + gpu.withheld_because);
    }
    if (!part.host.within(node.host.spare()))
      return "waits for CPUs and host memory of node '" + node.name() + "'";
  }
  return std::nullopt;
}

void Core::begin_resumption(Lease& lease, Time now) {
  note_suspension("lease_resuming", lease, "", now);
  counters_.set_suspended_ms(counters_.suspended_ms() +
                             static_cast<uint64_t>(std::max<Time>(0, now - lease.suspension->since)));
  accrue(lease, now);
  Tenant& whose = tenant(lease.tenant);
  whose.count(now);
  for (LeasePart& part : lease.parts) {
    for_each_allocation(part, [](auto& allocations, const auto& amount) { allocations.used += amount; });
    add_usage(part, whose);
    part.counted = part.allocated = true;
  }
  lease.suspension->reason.clear();
  order_again(lease, State::resuming, now);
  for (const LeasePart& part : lease.parts) changed(*part.node, false);
}

void Core::become_resumed(Lease& lease, Time now) {
  const bool was_suspended = lease.suspension->reason.empty();
  note_suspension(was_suspended ? "lease_resumed" : "lease_goes_on", lease, lease.suspension->reason, now);
  if (was_suspended) {
    counters_.set_suspensions_resumed(counters_.suspensions_resumed() + 1);
    counters_.set_resuming_ms(counters_.resuming_ms() +
                              static_cast<uint64_t>(std::max<Time>(0, now - lease.suspension->since)));
  }
  reclassify(lease, [&] {
    lease.suspension.reset();
    if (was_suspended && policy_.resumed_run_ms() != 0) lease.keeps_until = now + policy_.resumed_run_ms();
  });
  if (lease.keeps_until == 0) timed_.erase(lease.id);
  for (const LeasePart& part : lease.parts) answer(*part.node);
}

void Core::take_suspensions(Node& node, const pool::NodeReport& report, Time now) {
  for (int i = 0; i < report.suspensions_size() && i < kMostAnswers; ++i) {
    const pool::LeaseSuspension& told = report.suspensions(i);
    Lease* const lease = leases_.find(told.lease());
    if (!lease || lease->ending || told.number() != lease->suspension_orders) continue;
    LeasePart* const part = lease->part_on(node);
    if (!part) continue;
    part->suspended = told;
    part->suspended.set_reason(printable_message(told.reason()));
    if (lease->suspension) check_answers(*lease, now);
  }
}

// Goes on when all nodes have executed the last order.
void Core::check_answers(Lease& lease, Time now) {
  const auto has_answered = [&](const LeasePart& part) {
    return part.suspended.number() == lease.suspension_orders;
  };
  const auto all_are = [&](pool::LeaseSuspension::State state) {
    return std::all_of(lease.parts.begin(), lease.parts.end(), [&](const LeasePart& part) {
      return has_answered(part) && part.suspended.state() == state;
    });
  };
  const auto runs = std::find_if(lease.parts.begin(), lease.parts.end(), [&](const LeasePart& part) {
    return has_answered(part) && (part.suspended.state() == pool::LeaseSuspension::RUNNING ||
                                  part.suspended.state() == pool::LeaseSuspension::RESUMING);
  });
  switch (lease.suspension->state) {
    case State::suspending:
      if (runs != lease.parts.end())
        fail_suspension(lease, "node '" + runs->node->name() + "': " + runs->suspended.reason(), now);
      else if (all_are(pool::LeaseSuspension::SUSPENDED))
        become_suspended(lease, now);
      break;
    case State::suspended:
      if (runs != lease.parts.end())
        runs->node->distrust_reason =
            "it reported that lease " + short_text(lease.id) + " runs, which it had suspended";
      break;
    case State::resuming:
      if (all_are(pool::LeaseSuspension::RUNNING)) become_resumed(lease, now);
      break;
  }
}

// Time limits. A silent node may have executed its order already: wait for its report, or until it is lost.
// When it registers again, give it time to answer once more.
void Core::check_suspensions(Time now) {
  for (const LeaseId& id : std::set<LeaseId>(timed_)) {
    Lease& lease = *leases_.find(id);
    if (lease.keeps_until != 0 && lease.keeps_until <= now) {
      reclassify(lease, [&] { lease.keeps_until = 0; });
      timed_.erase(id);
    }
    if (!lease.suspension || lease.suspension->state != State::suspending) continue;
    const uint32_t limit = policy_.suspend_ms();
    if (limit == 0 || now < lease.suspension->timed_from + limit) continue;
    const bool is_open = std::any_of(lease.parts.begin(), lease.parts.end(), [&](const LeasePart& part) {
      const auto& registrations = part.node->registrations;
      return part.node->silent ||
             (!registrations.empty() &&
              now < registrations.back() + kHeartbeatsUntilAnswer * int64_t{policy_.heartbeat_ms()});
    });
    if (is_open) continue;
    uint32_t left = 0;
    for (const LeasePart& part : lease.parts)
      left += part.sessions - std::min(part.sessions, part.suspended.sessions());
    fail_suspension(lease,
                    "it was not suspended within " + std::to_string(limit / 1000) +
                        " s (policy suspend): " + counted(left, "session") + " left",
                    now);
  }
}

void Core::order_to_suspend(const Lease& lease, pool::NodeOrders& orders) {
  if (!lease.suspension) return;
  pool::SuspendLease& order = *orders.add_suspend();
  order.set_lease(lease.id);
  order.set_number(lease.suspension_orders);
  order.set_resume(lease.suspension->state == State::resuming);
}

Result<LeaseId> Core::suspend_lease(const std::string& text, Time now) {
  const auto id = lease_called(text);
  if (!id) return id.error();
  Lease& lease = *leases_.find(*id);
  if (lease.is_suspended() && !lease.suspension->held) {
    lease.suspension->held = true;
    lease.suspension->because = "an operator's command";
    dirty_leases_.insert(*id);
    dirty_ = true;
    return *id;
  }
  auto why = why_not_suspend(lease);
  if (lease.is_suspended()) why = "it is suspended already";
  if (why) return Error{ErrorCode::invalid, "cannot suspend lease " + short_text(*id) + ": " + *why};
  Suspension how;
  how.held = true;
  how.because = "an operator's command";
  begin_suspension(lease, std::move(how), now);
  return *id;
}

Result<LeaseId> Core::resume_lease(const std::string& text, Time now) {
  const auto id = lease_called(text);
  if (!id) return id.error();
  Lease& lease = *leases_.find(*id);
  const auto cannot = [&](const std::string& why) {
    return Error{ErrorCode::invalid, "cannot resume lease " + short_text(*id) + ": " + why};
  };
  if (lease.ending) return cannot("it is ending: " + lease.reason);
  if (!lease.suspension) return cannot("it is not suspended");
  if (lease.suspension->state == State::resuming) return cannot("it is being resumed already");
  if (lease.suspension->state == State::suspending) {
    if (lease.suspension->preempted) return cannot("it gives way: " + lease.suspension->because);
    fail_suspension(lease, "an operator has resumed it", now);
    return *id;
  }
  lease.suspension->held = false;
  dirty_leases_.insert(*id);
  dirty_ = true;
  return *id;
}

void Core::lift_kept() {
  for (Node* const node : std::exchange(kept_on_, {})) {
    for (Gpu& gpu : node->gpus) gpu.allocations.kept = {};
    node->host.kept = {};
    placer_->changed(*node);
  }
  resume_first_.clear();
}

// Keeps the lease's GPUs against requests of its own or a lower priority, and preempts for it if it may.
void Core::keep_for(Lease& lease, Time now) {
  const bool may_preempt = policy_.preemption() && lease.request.priority() > lease::BEST_EFFORT;
  const std::string reason = "lease " + short_text(lease.id) + " of tenant '" + lease.tenant +
                             "', which has a higher priority, is to be resumed";
  for (const LeasePart& part : lease.parts) {
    for (const auto& share : part.shares) {
      if (may_preempt && part.node->may_resume())
        preempt_gpu({part.node, share.gpu}, share.amount, reason, now);
    }
    if (may_preempt && part.node->may_resume()) preempt_host(*part.node, part.host, reason, now);
    for_each_allocation(part, [](auto& allocations, const auto& amount) { allocations.kept += amount; });
    kept_on_.insert(part.node);
    placer_->changed(*part.node);
  }
}

// Resumes suspended leases of this priority, the oldest first, before any request of it. Those that do not
// fit keep their GPUs from these.
void Core::resume_suspended(lease::Priority priority, Time now) {
  std::vector<Lease*> waiting;
  for (const LeaseId& id : timed_) {
    Lease& lease = *leases_.find(id);
    if (lease.is_suspended() && !lease.suspension->held && lease.request.priority() == priority)
      waiting.push_back(&lease);
  }
  std::sort(waiting.begin(), waiting.end(), [](const Lease* a, const Lease* b) {
    return std::tie(a->granted, a->id) < std::tie(b->granted, b->id);
  });
  std::set<LeaseId> kept;
  for (Lease* const lease : waiting) {
    const Tenant& whose = tenant(lease->tenant);
    std::optional<std::string> why;
    if (resume_first_.contains(whose.name) || !has_quota_for(whose, *lease)) {
      why = "waits for quota of tenant '" + whose.name + "'";
      resume_first_.insert(whose.name);
    } else if ((why = why_not_resume(*lease))) {
      keep_for(*lease, now);
      kept.insert(lease->id);
    }
    if (why)
      lease->suspension->reason = *why;
    else
      begin_resumption(*lease, now);
  }
  if (std::exchange(kept_for_[priority], kept) != kept) ++capacity_;
}

}  // namespace gpupool::scheduler
