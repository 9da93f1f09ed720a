// `pool-admin quota set`: KEY=VALUE words, with the keys and units of poold's configuration file.
#pragma once
#include <string>
#include <vector>

#include "protocol/control/admin.pb.h"
#include "protocol/wire/result.h"

namespace gpupool::admin {

// The changes that they ask for.
Result<Quota> read_quota_words(const std::vector<std::string>& words);

}  // namespace gpupool::admin
