// KEY=VALUE words for a tenant's quota in the pool, and for the pool's policy.
#pragma once
#include <string>
#include <vector>

#include "protocol/control/pool_admin.pb.h"
#include "protocol/wire/result.h"

namespace gpupool::admin {

// Only the fields that are named. ErrorCode::invalid: which word is wrong, and why.
Result<pool::TenantQuota> read_tenant_quota(const std::vector<std::string>& words);
Result<pool::Policy> read_policy(const std::vector<std::string>& words);

}  // namespace gpupool::admin
