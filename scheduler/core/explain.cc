// Core: texts for users whose requests wait, and for operators who ask about a lease.
#include "common/text/units.h"
#include "protocol/control/node_condition.h"
#include "scheduler/core/core.h"
#include "scheduler/core/feasibility.h"

namespace gpupool::scheduler {
namespace {

// Lists the hosts that have suitable GPUs but get no lease for the demand now, with the causes:
// "; n1 is drained (new kernel), n2 is lost (no heartbeat for too long)".
std::string closed_hosts(const Nodes& nodes, const Demand& demand) {
  constexpr uint32_t kMaxHosts = 4;
  std::string text;
  uint32_t hosts = 0;
  for (const auto& [name, node] : nodes) {
    const bool suits =
        std::any_of(node.gpus.begin(), node.gpus.end(), [&](const Gpu& gpu) { return demand.suits(gpu); });
    const bool apart = demand.apart.contains(&node);
    const auto withheld = std::find_if(node.gpus.begin(), node.gpus.end(), [&](const Gpu& gpu) {
      return demand.suits(gpu) && gpu.allocations.withheld;
    });
    if (node.forgotten() || !suits || (node.open() && !apart && withheld == node.gpus.end()) ||
        ++hosts > kMaxHosts)
      continue;
    const auto [condition, because] = node.condition();
    text += (hosts == 1 ? "; " : ", ") + name;
    if (node.open() && apart)
      text += " has a lease that the request must not share a host with";
    else if (node.open())
      text += " has a GPU that another node reports as well";
    else
      text += std::string(" is ") + pool::text_of(condition) + (because.empty() ? "" : " (" + because + ")");
  }
  return hosts <= kMaxHosts ? text : text + " and " + std::to_string(hosts - kMaxHosts) + " more";
}

std::string whole_seconds(Time milliseconds) {
  return std::to_string((std::max<Time>(0, milliseconds) + 999) / 1000) + " s";
}

void explain_moves(const Lease& lease, const pool::Policy& policy, Time now,
                   std::vector<std::string>& lines) {
  if (lease.move) {
    const LeaseMove& move = *lease.move;
    const LeasePart& from = lease.parts[move.place];
    lines.push_back("moving from node '" + from.node->name() + "' to node '" + move.to.node->name() +
                    "' for " + whole_seconds(now - move.since) + ": " + counted(from.sessions, "session") +
                    " left, " + counted(move.to.sessions, "session") + " there" +
                    (move.cannot_move.empty() ? "" : "; " + move.cannot_move));
    if (!move.because.empty()) lines.push_back("the move " + move.because);
    if (from.node->silent)
      lines.push_back("no heartbeat from node '" + from.node->name() + "', which has to move the sessions");
    else if (policy.move_ms() != 0)
      lines.push_back("the move is turned round in " +
                      whole_seconds(move.timed_from + policy.move_ms() - now) + " (policy move)");
  }
  for (const LeavingPart& one : lease.leaving) {
    const std::string node = "node '" + one.part.node->name() + "'";
    lines.push_back(one.back ? "the move to " + node + " has failed: " + one.reason
                             : one.reason + " while the lease moved away from it");
    lines.push_back(node + " keeps its share until no session is left there (" +
                    counted(one.part.sessions, "session") +
                    " now), its poold is restarted, or it is removed" +
                    (one.part.node->silent ? "; no heartbeat from it" : "") +
                    (one.part.cannot_move.empty() ? "" : "; " + one.part.cannot_move));
  }
  for (const LeasePart& part : lease.parts) {
    const std::string node = "node '" + part.node->name() + "'";
    if (!part.cannot_move.empty())
      lines.push_back("not moved away from " + node + ": " + part.cannot_move);
    else if (part.node->moves_away && !part.waits_because.empty())
      lines.push_back("waits to move away from " + node + ", which is drained: " + part.waits_because);
  }
}

void explain_suspension(const Lease& lease, const pool::Policy& policy, Time now,
                        std::vector<std::string>& lines) {
  if (lease.keeps_until > now)
    lines.push_back("it was resumed, and is not preempted for another " +
                    whole_seconds(lease.keeps_until - now) + " (policy resumed-run)");
  if (!lease.suspension) {
    if (!lease.cannot_suspend.empty())
      lines.push_back("it could not be suspended the last time: " + lease.cannot_suspend);
    return;
  }
  const Suspension& its = *lease.suspension;
  const std::string time = " for " + whole_seconds(now - its.since);
  switch (its.state) {
    case Suspension::State::suspending:
      lines.push_back("being suspended" + time + ": " + its.because);
      if (policy.suspend_ms() != 0)
        lines.push_back((its.preempted ? "it ends if that takes longer than " : "it goes on after ") +
                        whole_seconds(policy.suspend_ms()) + " (policy suspend)");
      break;
    case Suspension::State::suspended:
      lines.push_back("suspended" + time + ": " + its.because);
      lines.push_back(its.held             ? "held by an operator: pool-admin resume " + short_text(lease.id)
                      : its.reason.empty() ? "it is resumed as soon as there is room"
                                           : its.reason);
      break;
    case Suspension::State::resuming:
      lines.push_back(its.reason.empty() ? "being resumed" + time
                                         : "goes on, because it could not be suspended: " + its.reason);
  }
  for (const LeasePart& part : lease.parts) {
    if (!part.suspended.reason().empty() && its.state != Suspension::State::suspended)
      lines.push_back("node '" + part.node->name() + "': " + part.suspended.reason());
  }
}

}  // namespace

// Says what a lease waits for, one line for each thing.
std::vector<std::string> Core::explain(const Lease& lease, Time now) const {
  if (!lease.ending) {
    const std::string holder = (lease.request.program().empty() ? "its program" : lease.request.program()) +
                               (lease.request.host().empty() ? "" : " on " + lease.request.host());
    std::vector<std::string> lines{lease.holder != 0
                                       ? "granted; held by " + holder
                                       : holder +
                                             " is disconnected from the scheduler; the lease is held for "
                                             "another " +
                                             whole_seconds(lease.deadline - now)};
    for (const LeasePart& part : lease.parts)
      lines.push_back("on node '" + part.node->name() + "': " + counted(part.shares.size(), "GPU") + ", " +
                      counted(part.sessions, "session"));
    explain_moves(lease, policy_, now, lines);
    explain_suspension(lease, policy_, now, lines);
    return lines;
  }
  std::vector<std::string> lines{std::string("ending: ") + pool::Ended::Why_Name(lease.why) + ", " +
                                 lease.reason};
  if (lease.end_at > now)
    lines.push_back("its sessions will be ended in " + whole_seconds(lease.end_at - now));
  for (const LeasePart& part : lease.parts) {
    lines.push_back("waiting for node '" + part.node->name() + "' to confirm that its sessions have ended" +
                    (part.node->silent   ? "; no heartbeat from the node"
                     : part.sessions > 0 ? "; " + counted(part.sessions, "session")
                                         : ""));
  }
  return lines;
}

const WaitingRequest* Core::blocking_request(const WaitingRequest& waiter) const {
  const auto blocked = blocked_.find(waiter.tenant);
  if (blocked == blocked_.end()) return nullptr;
  const auto found = queue_.all().find(blocked->second);
  return found != queue_.all().end() && found->second.before(waiter) ? &found->second : nullptr;
}

// Describes what is reserved for the head of the queue.
std::string Core::explain_reservation() const {
  std::set<std::string> nodes;
  for (const GpuSlot& slot : reservation_) nodes.insert(slot.node->name());
  return "; it is first in the queue, and " + std::to_string(reservation_.size()) +
         (reservation_.size() == 1 ? " is" : " are") + " reserved for it on " + *nodes.begin() +
         (nodes.size() > 1 ? " and " + std::to_string(nodes.size() - 1) + " more" : "");
}

// `before`: the request of the same tenant behind which this one waits; null: none.
std::string Core::explain_quota(const WaitingRequest& waiter, const WaitingRequest* before) const {
  const Tenant& whose = tenants_.at(waiter.tenant);
  const pool::TenantQuota& quota = whose.quota;
  std::string text =
      before ? "waits behind request " + before->queue_id() + " of the same tenant, which " : "";
  text += "waits for quota of tenant '" + whose.name + "', in use: ";
  text += (quota.leases() == 0 ? "" : std::to_string(whose.leases) + " of ") +
          counted(quota.leases() == 0 ? whose.leases : quota.leases(), "lease") + ", ";
  text += quota.compute_milli() == 0 ? gpus_text(whose.milli)
                                     : milli_text(whose.milli) + " of " + gpus_text(quota.compute_milli());
  text += ", " + bytes_text(whose.memory);
  if (quota.memory_bytes() != 0) text += " of " + bytes_text(quota.memory_bytes());
  return text + " of GPU memory" +
         (resume_first_.contains(whose.name) ? "; a suspended lease of it is resumed first" : "");
}

std::string Core::explain(const WaitingRequest& waiter) const {
  const Tenant& whose = tenants_.at(waiter.tenant);
  if (!whose.over_budget.empty()) return "waits: " + whose.over_budget;
  const WaitingRequest* const before = blocking_request(waiter);
  if (waiter.over_quota || before) return explain_quota(waiter, before);
  const Demand demand = demand_now(waiter);
  if (!settled_) {
    if (const auto never = why_never_places(nodes_, Demand(waiter.request))) {
      return *never + "; the scheduler has just started and waits " +
             std::to_string((settling_ms() + 999) / 1000) +
             " s for more nodes to register before it refuses the request";
    }
  }
  const auto open_gpus = [&](const Demand& with) {
    return count_gpus(nodes_, with, all_of_host, [&](const Node& node, const Gpu& gpu) {
      return node.open() && !gpu.allocations.withheld && !demand.apart.contains(&node) &&
             with.of(gpu).within(gpu.allocations.total);
    });
  };
  const uint32_t could = open_gpus(demand);
  std::string text = "waits for " + text_of(demand);
  if (could < demand.gpus) {
    text += ": " + std::to_string(could) + " can be leased now" + closed_hosts(nodes_, demand);
    Demand without_quota = demand;
    without_quota.most_memory = UINT64_MAX;
    if (open_gpus(without_quota) == could) return text;
    return text + "; on other GPUs it would exceed the quota of tenant '" + whose.name +
           "', in use: " + bytes_text(whose.memory) + " of memory=" + size_text(whose.quota.memory_bytes());
  }
  const bool head = waiter.stream == head_;
  const auto count_free = [&](bool with_reserved) {
    const auto left = [&](const auto& allocations) {
      return with_reserved ? allocations.free() : allocations.spare();
    };
    return count_gpus(
        nodes_, demand, [&](const Node& node) { return left(node.host); },
        [&](const Node& node, const Gpu& gpu) {
          return node.open() && !demand.apart.contains(&node) && demand.of(gpu).within(left(gpu.allocations));
        });
  };
  const uint32_t free = count_free(head);
  text += ": " + std::to_string(free) + " of " + std::to_string(could) + " suitable GPUs " +
          (free == 1 ? "is" : "are") + " free";
  if (head) {
    text += explain_reservation() + explain_defragmentation(waiter);
  } else if (const auto first = queue_.all().find(head_); first != queue_.all().end()) {
    if (const uint32_t kept = count_free(true) - free; kept > 0) {
      text += "; " + std::to_string(kept) + (kept == 1 ? " is" : " are") + " reserved for request " +
              first->second.queue_id() + ", which is ahead in the queue";
    }
  }
  return text;
}

}  // namespace gpupool::scheduler
