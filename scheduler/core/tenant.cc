#include "scheduler/core/tenant.h"

#include "protocol/control/pool_quota_kinds.h"

namespace gpupool::scheduler {
namespace {

constexpr uint32_t kMaxWeight = 1000;
constexpr uint32_t kDay = 86'400'000;

std::optional<std::string> out_of(const char* field, uint64_t lowest, uint64_t highest) {
  return std::string(field) + " must be " + std::to_string(lowest) + " to " + std::to_string(highest);
}

}  // namespace

void Tenant::combine() {
  quota = as_configured;
  if (set) quota.MergeFrom(*set);
}

pool::TenantQuota default_quota() {
  pool::TenantQuota quota;
  for (const pool::QuotaKind& kind : pool::kQuotaKinds) kind.set(quota, kind.initial);
  return quota;
}

pool::Policy default_policy() {
  pool::Policy policy;
  policy.set_placement("fragmentation");
  policy.set_preemption(true);
  policy.set_grace_ms(30'000);
  policy.set_hold_ms(30'000);
  policy.set_token_ms(600'000);
  policy.set_heartbeat_ms(2'000);
  policy.set_node_lost_ms(30'000);
  policy.set_backfill(1'000);
  policy.set_move_ms(60'000);
  return policy;
}

std::optional<std::string> check_quota(const pool::TenantQuota& changes) {
  if (changes.has_weight() && (changes.weight() < 1 || changes.weight() > kMaxWeight))
    return out_of("weight", 1, kMaxWeight);
  if (changes.has_highest_priority() && !lease::Priority_IsValid(changes.highest_priority()))
    return "unknown priority";
  return std::nullopt;
}

std::optional<std::string> check_policy(const pool::Policy& changes) {
  const auto outside = [](bool there, uint32_t value, uint32_t lowest, uint32_t highest) {
    return there && (value < lowest || value > highest);
  };
  // Uses the keys and units of `pool-admin policy set`.
  const auto seconds = [](const char* key, const char* range) {
    return std::string(key) + " must be " + range + " seconds";
  };
  if (outside(changes.has_grace_ms(), changes.grace_ms(), 0, kDay)) return seconds("grace", "0 to 86400");
  if (outside(changes.has_hold_ms(), changes.hold_ms(), 1'000, kDay)) return seconds("hold", "1 to 86400");
  if (outside(changes.has_token_ms(), changes.token_ms(), 10'000, kDay))
    return seconds("token", "10 to 86400");
  if (outside(changes.has_heartbeat_ms(), changes.heartbeat_ms(), 100, 60'000))
    return seconds("heartbeat", "0.1 to 60");
  if (outside(changes.has_node_lost_ms(), changes.node_lost_ms(), 1'000, kDay))
    return seconds("node-lost", "1 to 86400");
  if (outside(changes.has_move_ms(), changes.move_ms(), 0, kDay)) return seconds("move", "0 to 86400");
  if (outside(changes.has_backfill(), changes.backfill(), 0, 100'000)) return out_of("backfill", 0, 100'000);
  return std::nullopt;
}

}  // namespace gpupool::scheduler
