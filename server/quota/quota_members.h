// The members of the kinds of quota (protocol/control/quota.def) in the types of quota.h. Any thread.
#pragma once
#include "protocol/control/quota_kinds.h"
#include "server/quota/quota.h"

namespace gpupool::quota {

struct Member {
  uint64_t (*get)(const Quota& quota);  // of every GPU without limits of its own
  void (*set)(Quota& quota, uint64_t value);
  // Null unless the kind may differ on single GPUs.
  uint64_t (*get_of_gpu)(const GpuShare& share);
  void (*set_of_gpu)(GpuLimits& limits, uint64_t value);
};

// In the order of kKinds.
inline constexpr Member kMembers[] = {
#define QUOTA_PER_GPU(type, member, initial, unit, key, title, importance, metric, help) \
  {[](const Quota& quota) { return static_cast<uint64_t>(quota.each.member); },          \
   [](Quota& quota, uint64_t value) { quota.each.member = static_cast<type>(value); },   \
   [](const GpuShare& share) { return static_cast<uint64_t>(share.member); },            \
   [](GpuLimits& limits, uint64_t value) { limits.member = static_cast<type>(value); }},
#define QUOTA_IN_POOLD(type, member, initial, unit, key, title, importance, metric, help) \
  {[](const Quota& quota) { return static_cast<uint64_t>(quota.member); },                \
   [](Quota& quota, uint64_t value) { quota.member = static_cast<type>(value); }, nullptr, nullptr},
#define QUOTA_IN_WORKERS QUOTA_IN_POOLD
#include "protocol/control/quota.def"
};
static_assert(std::size(kMembers) == kKindCount);

// Returns the member of one of kKinds.
inline const Member& member_of(const Kind& kind) {
  return kMembers[&kind - kKinds];
}

}  // namespace gpupool::quota
