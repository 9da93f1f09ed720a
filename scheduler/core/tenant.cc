#include "scheduler/core/tenant.h"

#include <algorithm>

#include "common/text/units.h"
#include "protocol/control/pool_policy_kinds.h"
#include "protocol/control/pool_quota_kinds.h"

namespace gpupool::scheduler {
namespace {

constexpr uint32_t kMaxWeight = 1000;

bool is_time(pool::PolicyUnit unit) {
  return unit == pool::PolicyUnit::seconds || unit == pool::PolicyUnit::seconds_limit;
}

std::string limit_text(const pool::PolicyKind& kind, uint64_t value) {
  if (kind.unit == pool::PolicyUnit::rate) return size_text(value) + "/s";
  if (kind.unit == pool::PolicyUnit::bytes_limit) return size_text(value);
  return is_time(kind.unit) ? milli_text(value) : std::to_string(value);
}

std::optional<std::string> out_of(const char* field, uint64_t lowest, uint64_t highest) {
  return std::string(field) + " must be " + std::to_string(lowest) + " to " + std::to_string(highest);
}

}  // namespace

void Tenant::combine() {
  quota = as_configured;
  for (size_t i = 0; i < std::min(windows.size(), windows_applied.size()); ++i) {
    if (windows_applied[i]) quota.MergeFrom(windows[i].quota);
  }
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
  for (const pool::PolicyKind& kind : pool::kPolicyKinds) kind.set(policy, kind.initial);
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
  for (const pool::PolicyKind& kind : pool::kPolicyKinds) {
    const uint64_t value = kind.get(changes);
    if (!kind.has(changes) || (value >= kind.lowest && value <= kind.highest)) continue;
    // Uses the keys and units of `pool-admin policy set`.
    return std::string(kind.key) + " must be " + limit_text(kind, kind.lowest) + " to " +
           limit_text(kind, kind.highest) + (is_time(kind.unit) ? " seconds" : "");
  }
  return std::nullopt;
}

}  // namespace gpupool::scheduler
