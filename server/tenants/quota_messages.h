// A tenant's quota as messages of protocol/control/admin.proto, by the table protocol/control/quota.def. Pure
// functions.
#pragma once
#include "common/result.h"
#include "protocol/control/admin.pb.h"
#include "server/quota/quota.h"

namespace gpupool::server {

admin::Quota to_message(const quota::Quota& quota);
// Applies the fields that are present in `changes` to the quota, or to one GPU's limits. ErrorCode::invalid:
// `changes` has fields that do not exist for a single GPU.
void apply(const admin::Quota& changes, quota::Quota& quota);
// Returns the quota that to_message() was given.
quota::Quota quota_of(const admin::Quota& message);
Result<void> apply(const admin::Quota& changes, quota::GpuLimits& limits);

}  // namespace gpupool::server
