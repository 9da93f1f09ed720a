// The kinds of quota of a tenant in a pool (pool_quota.def), and their fields in TenantQuota of
// pool_admin.proto. A value of any unit is a uint64_t. Any thread.
#pragma once
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

#include "protocol/control/pool_admin.pb.h"

namespace gpupool::pool {

enum class QuotaUnit {
  gpus,      // thousandths of GPUs, written as a number of GPUs; 0: no limit
  memory,    // bytes; 0: no limit
  rate,      // bytes per second; 0: no limit
  count,     // 0: no limit
  weight,    // no limit, but a proportion
  priority,  // lease.Priority
};

struct QuotaKind {
  const char* member;  // the name of the field
  uint64_t initial;
  QuotaUnit unit;
  const char* key;    // in the configuration, with underscores
  const char* title;  // of the column of pool-admin
  int importance;     // of the column
  const char* example;
  bool (*has)(const TenantQuota& quota);
  uint64_t (*get)(const TenantQuota& quota);
  void (*set)(TenantQuota& quota, uint64_t value);  // the value must fit the field

  // The key on the command line, with hyphens.
  std::string word() const {
    std::string word = key;
    std::replace(word.begin(), word.end(), '_', '-');
    return word;
  }
  // The largest value of the field.
  uint64_t highest() const {
    return unit == QuotaUnit::gpus || unit == QuotaUnit::memory || unit == QuotaUnit::rate ? UINT64_MAX
                                                                                           : UINT32_MAX;
  }
};

inline const QuotaKind kQuotaKinds[] = {
#define POOL_QUOTA(member, initial, unit, key, title, importance, example)         \
  {#member,                                                                        \
   initial,                                                                        \
   QuotaUnit::unit,                                                                \
   key,                                                                            \
   title,                                                                          \
   importance,                                                                     \
   example,                                                                        \
   [](const TenantQuota& quota) { return quota.has_##member(); },                  \
   [](const TenantQuota& quota) { return static_cast<uint64_t>(quota.member()); }, \
   [](TenantQuota& quota, uint64_t value) {                                        \
     quota.set_##member(static_cast<decltype(quota.member())>(value));             \
   }},
#include "protocol/control/pool_quota.def"
};

// Returns null if there is no such kind. The key has underscores.
inline const QuotaKind* find_quota_kind(std::string_view key) {
  const auto* const found = std::find_if(std::begin(kQuotaKinds), std::end(kQuotaKinds),
                                         [&](const QuotaKind& kind) { return key == kind.key; });
  return found == std::end(kQuotaKinds) ? nullptr : found;
}

}  // namespace gpupool::pool
