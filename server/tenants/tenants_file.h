// Reads the tenants of poold's configuration: [[tenant]] and [default_quota] (docs/operations.md).
#pragma once
#include <toml++/toml.h>

#include <string>
#include <vector>

#include "common/result.h"
#include "server/tenants/tenant.h"

namespace gpupool::server {

// Reads and checks all tenants (check_tenants()). ErrorCode::invalid: the message names the key. With
// [default_quota] alone, returns the default tenant with that quota; with neither, returns none.
Result<std::vector<Tenant>> read_tenants(const toml::table& file);

}  // namespace gpupool::server
