// Runs poold with the given options until a signal ends it. main() calls it on the main thread.
#pragma once
#include <string>
#include <vector>

#include "server/poold/options.h"

namespace gpupool::server {

// Returns the exit status: 0 after SIGTERM or SIGINT, kExitFailure if poold could not start (reason on
// stderr). `arguments`: of main(), for upgrades.
int run_daemon(const ServerOptions& options, const std::vector<std::string>& arguments);

}  // namespace gpupool::server
