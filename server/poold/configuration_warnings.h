// Warnings of settings that are valid but have no effect. Written to the log, on poold's thread.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "protocol/control/hello.pb.h"
#include "server/poold/options.h"
#include "server/tenants/tenants.h"

namespace gpupool::server {

// Warns of a memory limit above every GPU's memory, which is probably a mistake.
void warn_of_quota(const Tenant& tenant, const std::vector<control::Device>& devices);
// Warns if tenants list users but a listening socket is at a path, where a user ID does not authenticate.
void warn_of_users(const ServerOptions& options, const std::map<std::string, Tenant>& tenants);

}  // namespace gpupool::server
