// The fields of the kinds of quota (quota.def) in the messages of admin.proto. Any thread.
#pragma once
#include "protocol/control/admin.pb.h"
#include "protocol/control/quota_kinds.h"

namespace gpupool::quota {

struct Field {
  bool (*has)(const admin::Quota& quota);
  uint64_t (*get)(const admin::Quota& quota);
  void (*set)(admin::Quota& quota, uint64_t value);
  void (*clear)(admin::Quota& quota);
  // Null unless the kind may differ on single GPUs.
  uint64_t (*get_of_gpu)(const admin::GpuQuota& quota);
  void (*set_of_gpu)(admin::GpuQuota& quota, uint64_t value);
};

// In the order of kKinds.
inline const Field kFields[] = {
#define GPUPOOL_QUOTA_FIELD(member)                                                    \
  [](const admin::Quota& quota) { return quota.has_##member(); },                      \
      [](const admin::Quota& quota) { return static_cast<uint64_t>(quota.member()); }, \
      [](admin::Quota& quota, uint64_t value) {                                        \
        quota.set_##member(static_cast<decltype(quota.member())>(value));              \
      },                                                                               \
      [](admin::Quota& quota) { quota.clear_##member(); }
#define QUOTA_PER_GPU(type, member, initial, unit, key, title, importance, metric, help) \
  {GPUPOOL_QUOTA_FIELD(member),                                                          \
   [](const admin::GpuQuota& quota) { return static_cast<uint64_t>(quota.member()); },   \
   [](admin::GpuQuota& quota, uint64_t value) { quota.set_##member(static_cast<type>(value)); }},
#define QUOTA_IN_POOLD(type, member, initial, unit, key, title, importance, metric, help) \
  {GPUPOOL_QUOTA_FIELD(member), nullptr, nullptr},
#define QUOTA_IN_WORKERS QUOTA_IN_POOLD
#include "protocol/control/quota.def"
#undef GPUPOOL_QUOTA_FIELD
};
static_assert(std::size(kFields) == kKindCount);

// Returns the field of one of kKinds.
inline const Field& field_of(const Kind& kind) {
  return kFields[&kind - kKinds];
}

}  // namespace gpupool::quota
