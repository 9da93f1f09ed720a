// Settings of poold's membership in a pool: [pool] in its configuration, --pool-... on its command line.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/result.h"
#include "protocol/lease/key.h"

namespace gpupool::settings {
struct OptionRow;
}

namespace gpupool::server {

struct PoolOptions {
#define OPTION(type, member, initial, kind, name, help) type member = initial;
#include "server/poold/node/pool_options.def"
  bool configured() const { return !public_keys.empty() || !schedulers.empty(); }
};

// The table of these options (pool_options.def). Its rows set the members of `options`, which must outlive
// them.
std::vector<settings::OptionRow> pool_rows(PoolOptions& options);

// Sets a missing node name to the host's name, and checks the options. ErrorCode::invalid: the message is
// complete.
Result<void> check_pool(PoolOptions& options);
Result<std::vector<lease::PublicKey>> read_public_keys(const std::vector<std::string>& files);

}  // namespace gpupool::server
