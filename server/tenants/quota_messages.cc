#include "server/tenants/quota_messages.h"

#include "protocol/control/quota_fields.h"
#include "server/quota/quota_members.h"

namespace gpupool::server {

admin::Quota to_message(const quota::Quota& quota) {
  admin::Quota message;
  for (const quota::Kind& kind : quota::kKinds)
    quota::field_of(kind).set(message, quota::member_of(kind).get(quota));
  for (const auto& [gpu, limits] : quota.gpus) {
    admin::GpuQuota& one = *message.add_gpus();
    one.set_gpu(gpu);
    const quota::GpuShare share = quota.with(limits);
    for (const quota::Kind& kind : quota::kKinds) {
      if (kind.per_gpu) quota::field_of(kind).set_of_gpu(one, quota::member_of(kind).get_of_gpu(share));
    }
  }
  return message;
}

void apply(const admin::Quota& changes, quota::Quota& quota) {
  for (const quota::Kind& kind : quota::kKinds) {
    const quota::Field& field = quota::field_of(kind);
    if (field.has(changes)) quota::member_of(kind).set(quota, field.get(changes));
  }
}

quota::Quota quota_of(const admin::Quota& message) {
  quota::Quota quota;
  apply(message, quota);
  for (const admin::GpuQuota& gpu : message.gpus()) {
    quota::GpuLimits& limits = quota.gpus[gpu.gpu()];
    for (const quota::Kind& kind : quota::kKinds) {
      if (kind.per_gpu) quota::member_of(kind).set_of_gpu(limits, quota::field_of(kind).get_of_gpu(gpu));
    }
  }
  return quota;
}

Result<void> apply(const admin::Quota& changes, quota::GpuLimits& limits) {
  admin::Quota others = changes;
  for (const quota::Kind& kind : quota::kKinds) {
    if (kind.per_gpu) quota::field_of(kind).clear(others);
  }
  if (others.ByteSizeLong() != 0) {
    return Error{ErrorCode::invalid, "per-GPU limits accept only " +
                                         quota::names_of_kinds(quota::Spelling::key, /*only_per_gpu=*/true)};
  }
  for (const quota::Kind& kind : quota::kKinds) {
    const quota::Field& field = quota::field_of(kind);
    if (kind.per_gpu && field.has(changes)) quota::member_of(kind).set_of_gpu(limits, field.get(changes));
  }
  return {};
}

}  // namespace gpupool::server
