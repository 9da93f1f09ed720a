#include "scheduler/json/pool_json.h"

#include "protocol/control/pool_policy_kinds.h"
#include "protocol/control/pool_quota_kinds.h"

namespace gpupool::pool {
namespace {

template <class Number>
Json limit(Number value) {
  return value == 0 ? Json(nullptr) : Json(value);
}

template <class Words>
Json words(const Words& all) {
  Json list = Json::array();
  for (const auto& word : all) list.push_back(word);
  return list;
}

std::string hexadecimal(const std::string& bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Json json_of(const lease::Share& share) {
  return {{"gpu_uuid", share.gpu_uuid()},
          {"compute_milli", share.compute_milli()},
          {"memory_bytes", share.memory_bytes()}};
}

Json json_of(const LeasePart& part) {
  Json shares = Json::array();
  for (const auto& share : part.shares()) shares.push_back(json_of(share));
  return {{"node", part.node()},
          {"shares", std::move(shares)},
          {"sessions", part.sessions()},
          {"sessions_waiting", part.breaks().waiting()},
          {"waiting_ms", part.breaks().waiting_ms()},
          {"resumed", part.breaks().resumed()},
          {"waited_ms", part.breaks().waited_ms()},
          {"resent_bytes", part.breaks().resent_bytes()},
          {"sessions_suspended", part.breaks().suspended()},
          {"suspended_ms", part.breaks().suspended_ms()},
          {"suspended_bytes", part.breaks().suspended_bytes()},
          {"cpu_milli", part.cpu_milli()},
          {"host_memory_bytes", part.host_memory_bytes()},
          {"allocated", !part.unallocated()}};
}

const char* name_of(LeaseMove::State state) {
  switch (state) {
    case LeaseMove::WAITING: return "waiting";
    case LeaseMove::MOVING: return "moving";
    case LeaseMove::BACK: return "back";
    case LeaseMove::LEAVING: return "leaving";
    case LeaseMove::FAILED: return "failed";
    default: return "unknown";
  }
}

Json json_of(const LeaseMove& move) {
  return {{"state", name_of(move.state())},
          {"from", move.from()},
          {"to", move.to()},
          {"since_ms", limit(move.since_ms())},
          {"reason", move.reason()},
          {"part", move.has_part() ? json_of(move.part()) : Json(nullptr)}};
}

const char* name_of(LeaseStandstill::State state) {
  switch (state) {
    case LeaseStandstill::SUSPENDING: return "suspending";
    case LeaseStandstill::SUSPENDED: return "suspended";
    case LeaseStandstill::RESUMING: return "resuming";
    case LeaseStandstill::FAILED: return "failed";
    default: return "unknown";
  }
}

Json json_of(const LeaseStandstill& suspension) {
  return {{"state", name_of(suspension.state())}, {"held", suspension.held()},
          {"preempted", suspension.preempted()},  {"since_ms", limit(suspension.since_ms())},
          {"bytes", suspension.bytes()},          {"sessions", suspension.sessions()},
          {"because", suspension.because()},      {"reason", suspension.reason()}};
}

Json json_of(const Request& request) {
  return {{"gpus", request.gpus()},
          {"compute_milli", request.compute_milli()},
          {"memory_bytes", request.memory_bytes()},
          {"models", words(request.models())},
          {"one_host", request.one_host()},
          {"cpu_milli", request.cpu_milli()},
          {"host_memory_bytes", request.host_memory_bytes()},
          {"mode", text_of(request.mode())},
          {"priority", text_of(request.priority())},
          {"near", words(request.near())},
          {"apart_from", words(request.apart_from())},
          {"labels", words(request.labels())},
          {"program", request.program()},
          {"host", request.host()},
          {"pid", request.pid()}};
}

Json json_of(const PoolCounters& counters) {
  Json ended = Json::object();
  for (const auto& one : counters.ended()) ended[text_of(one.why())] = one.leases();
  return {{"requests", counters.requests()},
          {"refused", counters.refused()},
          {"granted", counters.granted()},
          {"gave_up", counters.gave_up()},
          {"resumed", counters.resumed()},
          {"renewed", counters.renewed()},
          {"ended", std::move(ended)},
          {"nodes_lost", counters.nodes_lost()},
          {"nodes_fenced", counters.nodes_fenced()},
          {"placements_tried", counters.placements_tried()},
          {"grant_wait_ms", counters.grant_wait_ms()},
          {"store_commits", counters.store_commits()},
          {"store_failures", counters.store_failures()},
          {"callers_refused", counters.callers_refused()},
          {"gpu_disputes", counters.gpu_disputes()},
          {"moves_begun", counters.moves_begun()},
          {"moves_done", counters.moves_done()},
          {"moves_failed", counters.moves_failed()},
          {"moves_cut", counters.moves_cut()},
          {"defragmentations", counters.defragmentations()},
          {"defragmentations_failed", counters.defragmentations_failed()},
          {"defragmentations_granted", counters.defragmentations_granted()},
          {"defragmentation_moves", counters.defragmentation_moves()},
          {"defragmentation_bytes", counters.defragmentation_bytes()},
          {"suspensions_begun", counters.suspensions_begun()},
          {"suspensions_done", counters.suspensions_done()},
          {"suspensions_failed", counters.suspensions_failed()},
          {"suspensions_cut", counters.suspensions_cut()},
          {"suspensions_resumed", counters.suspensions_resumed()},
          {"suspended_bytes", counters.suspended_bytes()},
          {"suspending_ms", counters.suspending_ms()},
          {"suspended_ms", counters.suspended_ms()},
          {"resuming_ms", counters.resuming_ms()},
          {"audit_records", counters.audit_records()},
          {"audit_records_lost", counters.audit_records_lost()}};
}

}  // namespace

const char* text_of(lease::Mode mode) {
  return mode == lease::HARD ? "hard" : "elastic";
}

const char* text_of(Ended::Why why) {
  switch (why) {
    case Ended::RELEASED: return "released";
    case Ended::PREEMPTED: return "preempted";
    case Ended::EVICTED: return "evicted";
    case Ended::NODE_LOST: return "node-lost";
    case Ended::EXPIRED: return "expired";
    default: return "unknown";
  }
}

Json json_of(const PoolState& pool) {
  return {{"version", pool.version()},
          {"leader", pool.leader()},
          {"started_ms", pool.started_ms()},
          {"term", pool.term()},
          {"store", pool.store()},
          {"public_key", hexadecimal(pool.public_key())},
          {"nodes", pool.nodes()},
          {"nodes_open", pool.nodes_open()},
          {"gpus", pool.gpus()},
          {"gpus_withheld", pool.gpus_withheld()},
          {"leases", pool.leases()},
          {"leases_ending", pool.leases_ending()},
          {"leases_suspended", pool.leases_suspended()},
          {"waiting", pool.waiting()},
          {"compute_milli", pool.compute_milli()},
          {"compute_milli_leased", pool.compute_milli_leased()},
          {"memory_bytes", pool.memory_bytes()},
          {"memory_bytes_leased", pool.memory_bytes_leased()},
          {"counters", json_of(pool.counters())}};
}

Json json_of(const PoolGpu& gpu) {
  return {{"node", gpu.node()},
          {"index", gpu.index()},
          {"uuid", gpu.uuid()},
          {"model", gpu.model()},
          {"memory_bytes", gpu.memory_bytes()},
          {"compute_milli_leased", gpu.compute_milli_leased()},
          {"memory_bytes_leased", gpu.memory_bytes_leased()},
          {"compute_milli_reserved", gpu.compute_milli_reserved()},
          {"memory_bytes_reserved", gpu.memory_bytes_reserved()},
          {"leases", gpu.leases()},
          {"memory_used_bytes", gpu.memory_used_bytes()},
          {"gpu_nanoseconds", gpu.gpu_nanoseconds()},
          {"withheld_because", gpu.withheld_because()}};
}

Json json_of(const NodeState& node) {
  return {{"name", node.name()},
          {"condition", text_of(node.condition())},
          {"because", node.because()},
          {"since_ms", node.since_ms()},
          {"drained", node.drained()},
          {"moves_away", node.moves_away()},
          {"evict_at_ms", limit(node.evict_at_ms())},
          {"leases_arriving", node.leases_arriving()},
          {"leases_leaving", node.leases_leaving()},
          {"leases_to_move", node.leases_to_move()},
          {"leases_not_moved", node.leases_not_moved()},
          {"leases_suspended", node.leases_suspended()},
          {"suspension_memory_bytes",
           node.has_suspension_room() ? Json(node.suspension_room().memory_bytes()) : Json(nullptr)},
          {"suspension_disk_bytes",
           node.has_suspension_room() ? Json(node.suspension_room().disk_bytes()) : Json(nullptr)},
          {"addresses", words(node.addresses())},
          {"rack", node.rack()},
          {"zone", node.zone()},
          {"version", node.version()},
          {"heard_ms", node.heard_ms()},
          {"clock_ahead_ms", node.clock_ahead_ms()},
          {"leases", node.leases()},
          {"cpu_milli", node.cpu_milli()},
          {"cpu_milli_leased", node.cpu_milli_leased()},
          {"host_memory_bytes", node.host_memory_bytes()},
          {"host_memory_bytes_leased", node.host_memory_bytes_leased()},
          {"gpus", json_list(node.gpus())}};
}

Json json_of(const LeaseState& lease) {
  Json parts = Json::array();
  for (const auto& part : lease.parts()) parts.push_back(json_of(part));
  Json moves = Json::array();
  for (const auto& move : lease.moves()) moves.push_back(json_of(move));
  return {{"id", lease.id()},
          {"tenant", lease.tenant()},
          {"priority", text_of(lease.priority())},
          {"mode", text_of(lease.mode())},
          {"parts", std::move(parts)},
          {"moves", std::move(moves)},
          {"suspension", lease.has_suspension() ? json_of(lease.suspension()) : Json(nullptr)},
          {"keeps_until_ms", limit(lease.keeps_until_ms())},
          {"granted_ms", lease.granted_ms()},
          {"serial", lease.serial()},
          {"held", lease.held()},
          {"hold_until_ms", limit(lease.hold_until_ms())},
          {"ending", lease.ending()},
          {"end", lease.ending() ? Json(text_of(lease.end())) : Json(nullptr)},
          {"end_reason", lease.end_reason()},
          {"end_at_ms", limit(lease.end_at_ms())},
          {"program", lease.program()},
          {"host", lease.host()},
          {"pid", lease.pid()},
          {"labels", words(lease.labels())}};
}

Json json_of(const Waiting& waiting) {
  return {{"id", waiting.id()},
          {"place", waiting.place()},
          {"tenant", waiting.tenant()},
          {"since_ms", waiting.since_ms()},
          {"request", json_of(waiting.request())},
          {"why", waiting.why()},
          {"head", waiting.head()}};
}

Json json_of(const TenantQuota& quota) {
  Json json;
  for (const QuotaKind& kind : kQuotaKinds) {
    const uint64_t value = kind.get(quota);
    if (kind.unit == QuotaUnit::priority)
      json[kind.member] = text_of(static_cast<lease::Priority>(value));
    else
      json[kind.member] = kind.unit == QuotaUnit::weight ? Json(value) : limit(value);
  }
  return json;
}

Json json_of(const BudgetState& budget) {
  return {{"period", budget.period()}, {"action", budget.action()}, {"unit", budget.unit()},
          {"amount", budget.amount()}, {"spent", budget.spent()},   {"ends_ms", budget.ends_ms()}};
}

Json json_of(const TenantState& tenant) {
  return {{"name", tenant.name()},
          {"configured", tenant.configured()},
          {"quota", tenant.configured() ? json_of(tenant.quota()) : Json(nullptr)},
          {"quota_set", tenant.quota_set()},
          {"leases", tenant.leases()},
          {"waiting", tenant.waiting()},
          {"compute_milli", tenant.compute_milli()},
          {"memory_bytes", tenant.memory_bytes()},
          {"dominant_share", tenant.dominant_share()},
          {"granted", tenant.granted()},
          {"gpu_milli_seconds", tenant.gpu_milli_seconds()},
          {"budgets", json_list(tenant.budgets())}};
}

Json json_of(const Policy& policy) {
  Json json{{"placement", policy.placement()}};
  for (const PolicyKind& kind : kPolicyKinds) {
    const uint64_t value = kind.get(policy);
    const bool is_switch = kind.unit == PolicyUnit::on_off || kind.unit == PolicyUnit::end_suspend;
    json[kind.member] = is_switch ? Json(value != 0) : Json(value);
  }
  return json;
}

Json json_of(const PoolSnapshot& snapshot) {
  return {{"taken_ms", snapshot.taken_ms()},          {"pool", json_of(snapshot.pool())},
          {"nodes", json_list(snapshot.nodes())},     {"leases", json_list(snapshot.leases())},
          {"waiting", json_list(snapshot.waiting())}, {"tenants", json_list(snapshot.tenants())}};
}

}  // namespace gpupool::pool
