#include "scheduler/admin/pool/describe.h"

#include <algorithm>
#include <map>

#include "protocol/control/pool_policy_kinds.h"
#include "protocol/control/pool_quota_kinds.h"
#include "scheduler/admin/describe.h"
#include "scheduler/admin/format.h"
#include "scheduler/admin/table.h"
#include "scheduler/json/pool_json.h"

namespace gpupool::admin {
namespace {

using std::chrono::milliseconds;

std::string age_text(int64_t since_ms, int64_t now_ms) {
  return duration_text(milliseconds(std::max<int64_t>(0, now_ms - since_ms)));
}

template <class Words>
std::string joined(const Words& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : ",") + word;
  return text;
}

// Formats a request: number of GPUs, compute share and memory of each, and models, as in "2 x 0.5, 8.0 GiB".
std::string request_text(const pool::Request& request) {
  std::string text = std::to_string(request.gpus()) + " x " + gpus_of(request.compute_milli());
  if (request.memory_bytes() != 0) text += ", " + bytes_text(request.memory_bytes());
  if (request.models_size() != 0) text += ", " + joined(request.models());
  return text;
}

struct Leased {
  uint64_t gpus = 0, compute = 0, memory = 0;
  uint32_t sessions = 0, waiting = 0, suspended = 0;
  uint64_t waiting_ms = 0, suspended_bytes = 0;
  std::string nodes;
};
Leased leased(const pool::LeaseState& lease) {
  Leased all;
  for (const auto& part : lease.parts()) {
    all.nodes += (all.nodes.empty() ? "" : ",") + part.node();
    all.sessions += part.sessions();
    all.waiting += part.breaks().waiting();
    all.waiting_ms = std::max(all.waiting_ms, part.breaks().waiting_ms());
    all.suspended += part.breaks().suspended();
    all.suspended_bytes += part.breaks().suspended_bytes();
    for (const auto& share : part.shares()) {
      ++all.gpus;
      all.compute += share.compute_milli();
      all.memory += share.memory_bytes();
    }
  }
  for (const auto& move : lease.moves()) all.sessions += move.part().sessions();
  return all;
}

// Which of the lease's sessions are suspended, or wait for their clients; empty: none.
std::string clients_text(const Leased& all) {
  const std::string suspended = all.suspended == 0 ? ""
                                                   : ", " + std::to_string(all.suspended) + " suspended (" +
                                                         bytes_text(all.suspended_bytes) + ")";
  if (all.waiting == 0) return suspended;
  return suspended + ", " + std::to_string(all.waiting) +
         (all.waiting == 1 ? " session waits" : " sessions wait") + " for the client since " +
         age_text(0, static_cast<int64_t>(all.waiting_ms));
}

std::string state_of(const pool::LeaseState& lease, int64_t now_ms) {
  if (lease.ending()) {
    const std::string left = lease.end_at_ms() > now_ms ? " in " + age_text(now_ms, lease.end_at_ms()) : "";
    return std::string(pool::text_of(lease.end())) + left;
  }
  const std::string moves = moves_text(lease, now_ms), suspension = suspension_text(lease, now_ms);
  return (lease.held() ? "held" : "disconnected, " + age_text(now_ms, lease.hold_until_ms()) + " left") +
         (moves.empty() ? "" : "; " + moves) + (suspension.empty() ? "" : "; " + suspension);
}

// Describes a node's moves of leases: "2 leases move away, 1 waits for room".
std::string moves_text(const pool::NodeState& node, int64_t now_ms) {
  std::string text;
  const auto add = [&](uint32_t number, const char* does, const char* do_it) {
    if (number == 0) return;
    const std::string subject = text.empty() ? counted(number, "lease") : std::to_string(number);
    text += (text.empty() ? "" : ", ") + subject + " " + (number == 1 ? does : do_it);
  };
  add(node.leases_leaving(), "moves away", "move away");
  add(node.leases_to_move(), "waits for room elsewhere", "wait for room elsewhere");
  add(node.leases_not_moved(), "cannot move", "cannot move");
  add(node.leases_arriving(), "arrives", "arrive");
  add(node.leases_suspended(), "is suspended", "are suspended");
  if (node.evict_at_ms() > now_ms && node.leases() > 0)
    text += (text.empty() ? "" : ", ") + ("evicts in " + age_text(now_ms, node.evict_at_ms()));
  return text;
}

std::string value_text(pool::QuotaUnit unit, uint64_t value) {
  switch (unit) {
    case pool::QuotaUnit::gpus: return value == 0 ? "-" : gpus_of(value);
    case pool::QuotaUnit::memory: return limit_text(value);
    case pool::QuotaUnit::rate: return rate_text(value);
    case pool::QuotaUnit::count: return count_text(static_cast<uint32_t>(value));
    case pool::QuotaUnit::weight: break;
    case pool::QuotaUnit::priority: return pool::text_of(static_cast<lease::Priority>(value));
  }
  return std::to_string(value);
}

std::string value_text(pool::PolicyUnit unit, uint64_t value) {
  using Unit = pool::PolicyUnit;
  const bool limits = unit == Unit::seconds_limit || unit == Unit::count_limit || unit == Unit::bytes_limit;
  if (limits && value == 0) return "unlimited";
  switch (unit) {
    case Unit::on_off: return value != 0 ? "on" : "off";
    case Unit::end_suspend: return value != 0 ? "suspend" : "end";
    case Unit::seconds:
    case Unit::seconds_limit: return format("%g s", static_cast<double>(value) / 1000.0);
    case Unit::bytes_limit: return size_text(value);
    case Unit::rate: return size_text(value) + "/s";
    case Unit::count:
    case Unit::count_limit: break;
  }
  return std::to_string(value);
}

}  // namespace

std::string policy_value_text(const pool::PolicyKind& kind, uint64_t value) {
  return value_text(kind.unit, value);
}

std::string moves_text(const pool::LeaseState& lease, int64_t now_ms) {
  using pool::LeaseMove;
  std::string text;
  for (const LeaseMove& move : lease.moves()) {
    // The reason is that of the move that is being turned round.
    const bool turning = std::any_of(lease.moves().begin(), lease.moves().end(), [&](const LeaseMove& other) {
      return other.state() == LeaseMove::BACK && other.to() == move.from();
    });
    const std::string since = " (since " + age_text(move.since_ms(), now_ms) + ")";
    std::string one;
    switch (move.state()) {
      case LeaseMove::WAITING: one = "waiting to move from " + move.from(); break;
      case LeaseMove::MOVING: one = "moving to " + move.to() + since; break;
      case LeaseMove::BACK: one = "moving back from " + move.from() + " to " + move.to() + since; break;
      case LeaseMove::LEAVING: one = "still on " + move.from(); break;
      default: one = turning ? "" : "not moved from " + move.from();
    }
    if (one.empty()) continue;
    text += (text.empty() ? "" : "; ") + one + (move.reason().empty() ? "" : ": " + move.reason());
  }
  return text;
}

std::string suspension_text(const pool::LeaseState& lease, int64_t now_ms) {
  using pool::LeaseStandstill;
  if (!lease.has_suspension() || lease.ending()) return "";
  const LeaseStandstill& its = lease.suspension();
  const std::string since = " (since " + age_text(its.since_ms(), now_ms) + ")";
  const std::string why = its.reason().empty() ? "" : ": " + its.reason();
  switch (its.state()) {
    case LeaseStandstill::SUSPENDING: return "being suspended" + since + why;
    case LeaseStandstill::SUSPENDED:
      return "suspended, " + bytes_text(its.bytes()) + since + (its.held() ? ", held by an operator" : why);
    case LeaseStandstill::RESUMING: return "being resumed" + since + why;
    default: return "not suspended" + why;
  }
}

std::string nodes_text(const google::protobuf::RepeatedPtrField<pool::NodeState>& nodes, int64_t now_ms,
                       size_t width) {
  if (nodes.empty()) return "no nodes\n";
  Table table({{"NODE", false, 8},
               {"STATE"},
               {"SINCE", true},
               {"GPUS", true},
               {"LEASED", true},
               {"MEMORY", true, 0, 60},
               {"LEASED", true, 0, 60},
               {"LEASES", true},
               {"RACK", false, 0, 30},
               {"ZONE", false, 0, 25},
               {"CLOCK", true, 0, 20},
               {"VERSION", false, 0, 10},
               {"ADDRESS", false, 10, 40},
               {"BECAUSE", false, 30, 90, true}});
  for (const auto& node : nodes) {
    uint64_t compute = 0, memory = 0, all = 0;
    for (const auto& gpu : node.gpus()) {
      compute += gpu.compute_milli_leased();
      memory += gpu.memory_bytes_leased();
      all += gpu.memory_bytes();
    }
    const std::string moves = moves_text(node, now_ms);
    table.add({node.name(), pool::text_of(node.condition()),
               node.since_ms() == 0 ? "-" : age_text(node.since_ms(), now_ms),
               std::to_string(node.gpus_size()), gpus_of(compute), bytes_text(all), bytes_text(memory),
               std::to_string(node.leases()), node.rack(), node.zone(),
               format("%+.1f s", static_cast<double>(node.clock_ahead_ms()) / 1000), node.version(),
               joined(node.addresses()),
               node.because() + (moves.empty() || node.because().empty() ? "" : "; ") + moves});
  }
  return table.text(width);
}

std::string gpus_text(const google::protobuf::RepeatedPtrField<pool::PoolGpu>& gpus, size_t width) {
  if (gpus.empty()) return "no GPUs\n";
  Table table({{"NODE", false, 8},
               {"GPU", true},
               {"MODEL", false, 8},
               {"UUID", false, 12, 10},
               {"LEASED", true},
               {"RESERVED", true, 0, 30},
               {"MEMORY", true},
               {"LEASED", true},
               {"USED", true, 0, 50},
               {"LEASES", true},
               {"BUSY", true, 0, 20}});
  for (const auto& gpu : gpus) {
    table.add({gpu.node(), std::to_string(gpu.index()), gpu.model(), gpu.uuid(),
               percent(gpu.compute_milli_leased(), 1000), percent(gpu.compute_milli_reserved(), 1000),
               bytes_text(gpu.memory_bytes()), bytes_text(gpu.memory_bytes_leased()),
               bytes_text(gpu.memory_used_bytes()), std::to_string(gpu.leases()),
               seconds_text(gpu.gpu_nanoseconds())});
  }
  return table.text(width);
}

std::string leases_text(const google::protobuf::RepeatedPtrField<pool::LeaseState>& leases, int64_t now_ms,
                        size_t width) {
  if (leases.empty()) return "no leases\n";
  Table table({{"LEASE", false, 8},
               {"TENANT", false, 8},
               {"GPUS", true},
               {"COMPUTE", true},
               {"MEMORY", true},
               {"PRIORITY", false, 0, 60},
               {"NODES", false, 8},
               {"SESSIONS", true, 0, 50},
               {"PROGRAM", false, 8},
               {"HOST", false, 6, 30},
               {"AGE", true},
               {"STATE", false, 10, 100, true}});
  for (const auto& lease : leases) {
    const Leased all = leased(lease);
    table.add({lease.id().substr(0, 8), lease.tenant(), std::to_string(all.gpus), gpus_of(all.compute),
               bytes_text(all.memory), pool::text_of(lease.priority()), all.nodes,
               std::to_string(all.sessions), lease.program(), lease.host(),
               age_text(lease.granted_ms(), now_ms), state_of(lease, now_ms) + clients_text(all)});
  }
  return table.text(width);
}

std::string queue_text(const google::protobuf::RepeatedPtrField<pool::Waiting>& waiting, int64_t now_ms,
                       size_t width) {
  if (waiting.empty()) return "no waiting requests\n";
  Table table({{"PLACE", true},
               {"ID"},
               {"TENANT", false, 8},
               {"WANTS", false, 8},
               {"PRIORITY", false, 0, 60},
               {"PROGRAM", false, 8, 40},
               {"HOST", false, 6, 30},
               {"SINCE", true},
               {"WHY", false, 30, 100, true}});
  for (const auto& one : waiting) {
    table.add({std::to_string(one.place()), one.id(), one.tenant(), request_text(one.request()),
               pool::text_of(one.request().priority()), one.request().program(), one.request().host(),
               age_text(one.since_ms(), now_ms), one.why()});
  }
  return table.text(width);
}

std::string tenants_text(const google::protobuf::RepeatedPtrField<pool::TenantState>& tenants, size_t width) {
  if (tenants.empty()) return "no tenants\n";
  Table table({{"TENANT", false, 8},
               {"LEASES", true},
               {"WAITING", true},
               {"GPUS", true},
               {"OF", true},
               {"MEMORY", true},
               {"OF", true},
               {"WEIGHT", true, 0, 40},
               {"SHARE", true},
               {"GRANTED", true, 0, 50},
               {"GPU HOURS", true, 0, 60}});
  for (const auto& tenant : tenants) {
    const auto& quota = tenant.quota();
    table.add({tenant.name() + (tenant.configured() ? "" : " (removed)"), std::to_string(tenant.leases()),
               std::to_string(tenant.waiting()), gpus_of(tenant.compute_milli()),
               quota.compute_milli() == 0 ? "-" : gpus_of(quota.compute_milli()),
               bytes_text(tenant.memory_bytes()), limit_text(quota.memory_bytes()),
               std::to_string(quota.weight()), format("%.1f %%", 100 * tenant.dominant_share()),
               std::to_string(tenant.granted()),
               format("%.1f", static_cast<double>(tenant.gpu_milli_seconds()) / 3.6e6)});
  }
  return table.text(width);
}

std::string quotas_text(const google::protobuf::RepeatedPtrField<pool::TenantState>& tenants, size_t width) {
  std::vector<Table::Column> columns{{"TENANT", false, 8}};
  for (const pool::QuotaKind& kind : pool::kQuotaKinds)
    columns.push_back({kind.title, kind.unit != pool::QuotaUnit::priority, 0, kind.importance});
  columns.push_back({"SOURCE"});
  Table table(columns);
  for (const auto& tenant : tenants) {
    if (!tenant.configured()) continue;
    std::vector<std::string> row{tenant.name()};
    for (const pool::QuotaKind& kind : pool::kQuotaKinds)
      row.push_back(value_text(kind.unit, kind.get(tenant.quota())));
    row.push_back(tenant.quota_set() ? "operator" : "");
    table.add(row);
  }
  return table.text(width);
}

std::string quota_text(const std::string& tenant, const pool::TenantQuota& quota) {
  google::protobuf::RepeatedPtrField<pool::TenantState> one;
  one.Add()->set_name(tenant);
  one[0].set_configured(true);
  *one[0].mutable_quota() = quota;
  return quotas_text(one, 0);
}

std::string policy_text(const pool::Policy& policy) {
  std::string text = "placement=" + policy.placement() + "\n";
  for (const pool::PolicyKind& kind : pool::kPolicyKinds)
    text += std::string(kind.key) + "=" + policy_value_text(kind, kind.get(policy)) + "\n";
  return text;
}

std::string pool_text(const pool::PoolState& state, int64_t now_ms) {
  return "pool-scheduler " + state.version() + (state.leader() ? ", leader" : ", not the leader") + " for " +
         age_text(state.started_ms(), now_ms) + ", store " + state.store() +
         "\nnodes: " + std::to_string(state.nodes()) + ", " + std::to_string(state.nodes_open()) +
         " open\nGPUs: " + gpus_of(state.compute_milli_leased()) + " of " + gpus_of(state.compute_milli()) +
         " leased (" + percent(state.compute_milli_leased(), state.compute_milli()) + "), memory " +
         percent(state.memory_bytes_leased(), state.memory_bytes()) +
         "\nleases: " + std::to_string(state.leases()) + ", " + std::to_string(state.leases_ending()) +
         " ending, " + std::to_string(state.leases_suspended()) +
         " suspended\nqueue: " + std::to_string(state.waiting()) + "\n";
}

std::string render_snapshot(const pool::PoolSnapshot& now, const pool::PoolSnapshot* before, size_t width) {
  std::map<std::string, const pool::PoolGpu*> then;
  if (before) {
    for (const auto& node : before->nodes()) {
      for (const auto& gpu : node.gpus()) then[gpu.uuid()] = &gpu;
    }
  }
  const uint64_t elapsed = before && now.taken_ms() > before->taken_ms()
                               ? static_cast<uint64_t>(now.taken_ms() - before->taken_ms()) * 1'000'000
                               : 0;
  Table gpus({{"NODE", false, 8},
              {"STATE"},
              {"GPU", true},
              {"MODEL", false, 8, 60},
              {"LEASED", true},
              {"BUSY", true},
              {"MEMORY LEASED", true},
              {"USED", true, 0, 70},
              {"OF", true},
              {"LEASES", true}});
  for (const auto& node : now.nodes()) {
    for (const auto& gpu : node.gpus()) {
      const auto old = then.find(gpu.uuid());
      const bool grew = old != then.end() && gpu.gpu_nanoseconds() >= old->second->gpu_nanoseconds();
      gpus.add({node.name(), pool::text_of(node.condition()), std::to_string(gpu.index()), gpu.model(),
                percent(gpu.compute_milli_leased(), 1000),
                grew ? percent(gpu.gpu_nanoseconds() - old->second->gpu_nanoseconds(), elapsed) : "-",
                bytes_text(gpu.memory_bytes_leased()), bytes_text(gpu.memory_used_bytes()),
                bytes_text(gpu.memory_bytes()), std::to_string(gpu.leases())});
    }
  }
  return pool_text(now.pool(), now.taken_ms()) + "\n" + (gpus.empty() ? "no GPUs\n" : gpus.text(width)) +
         "\n" + leases_text(now.leases(), now.taken_ms(), width) + "\n" +
         queue_text(now.waiting(), now.taken_ms(), width);
}

}  // namespace gpupool::admin
