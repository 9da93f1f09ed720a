// pool-admin's commands for one poold. They print to stdout and throw Failure.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/admin/poold.h"

namespace gpupool::admin {

Exit show_gpus(PooldClient& poold, bool json);
Exit show_sessions(PooldClient& poold, bool json, const std::string& tenant);
Exit show_tenants(PooldClient& poold, bool json);
Exit show_quotas(PooldClient& poold, bool json, const std::string& tenant);  // empty: of all
// `gpu`: empty: of each. The word `default` stands for what each GPU has.
Exit set_quota(PooldClient& poold, bool json, const std::string& tenant, const std::string& gpu, std::vector<std::string> words);
Exit kill_sessions(PooldClient& poold, bool json, const std::vector<std::string>& sessions, const std::string& reason);
// What a session is doing. kExitRefused, too, where its worker does not answer.
Exit show_dump(PooldClient& poold, bool json, const std::string& session);
Exit show_health(PooldClient& poold, bool json);

}  // namespace gpupool::admin
