// Parser for the KEY=VALUE words of `pool-admin quota set` for a poold. Keys and units are those of poold's
// configuration file. Pure.
#pragma once
#include <string>
#include <vector>

#include "common/result.h"
#include "protocol/control/admin.pb.h"

namespace gpupool::admin {

// Returns a quota in which only the given fields are set. ErrorCode::invalid says which word is wrong.
Result<Quota> read_quota_words(const std::vector<std::string>& words);

}  // namespace gpupool::admin
