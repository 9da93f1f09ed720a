// Parsers for the KEY=VALUE words of `pool-admin --scheduler ... quota set` and `policy set`. Pure functions.
#pragma once
#include <string>
#include <vector>

#include "common/result.h"
#include "protocol/control/pool_admin.pb.h"

namespace gpupool::admin {

// Return a message in which only the given fields are set. ErrorCode::invalid says which word is wrong, and
// why.
Result<pool::TenantQuota> read_tenant_quota(const std::vector<std::string>& words);
Result<pool::Policy> read_policy(const std::vector<std::string>& words);

}  // namespace gpupool::admin
