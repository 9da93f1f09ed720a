// The tenants in poold's configuration: [[tenant]] and [default_quota]; docs/operations.md.
#pragma once
#include <toml++/toml.h>

#include <string>
#include <vector>

#include "protocol/wire/result.h"
#include "server/tenants/tenant.h"

namespace gpupool::server {

// Checked as a whole (check_tenants()). What is wrong is ErrorCode::invalid and names the key. Only [default_quota]: one tenant, the
// default one, with it; nothing of either: none.
Result<std::vector<Tenant>> read_tenants(const toml::table& file);

}  // namespace gpupool::server
