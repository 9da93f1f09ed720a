// The numbers and switches of a pool's policy (pool_policy.def), and their fields in Policy of
// pool_admin.proto. A value of any unit is a uint64_t. Any thread.
#pragma once
#include <cstdint>
#include <limits>

#include "protocol/control/pool_admin.pb.h"

namespace gpupool::pool {

enum class PolicyUnit {
  on_off,
  end_suspend,    // 0: end, 1: suspend
  seconds,        // milliseconds, written as seconds
  seconds_limit,  // the same; 0: no limit
  count,
  count_limit,  // 0: no limit
  bytes_limit,  // 0: no limit
  rate,         // bytes per second
};

struct PolicyKind {
  const char* member;  // the name of the field
  uint64_t initial;
  uint64_t lowest, highest;
  PolicyUnit unit;
  const char* key;  // of `pool-admin policy set`
  const char* help;
  bool (*has)(const Policy& policy);
  uint64_t (*get)(const Policy& policy);
  void (*set)(Policy& policy, uint64_t value);  // the value must fit the field
  uint64_t largest;                             // that fits the field
};

inline const PolicyKind kPolicyKinds[] = {
#define POOL_POLICY(member, initial, lowest, highest, unit, key, help)          \
  {#member,                                                                     \
   initial,                                                                     \
   lowest,                                                                      \
   highest,                                                                     \
   PolicyUnit::unit,                                                            \
   key,                                                                         \
   help,                                                                        \
   [](const Policy& policy) { return policy.has_##member(); },                  \
   [](const Policy& policy) { return static_cast<uint64_t>(policy.member()); }, \
   [](Policy& policy, uint64_t value) {                                         \
     policy.set_##member(static_cast<decltype(policy.member())>(value));        \
   },                                                                           \
   static_cast<uint64_t>(std::numeric_limits<decltype(Policy().member())>::max())},
#include "protocol/control/pool_policy.def"
};

}  // namespace gpupool::pool
