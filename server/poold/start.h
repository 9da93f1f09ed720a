// Starts poold: checks the host and the options, opens listeners and log, takes over from this process's
// previous program if there is one, and serves. main() calls it on the main thread.
#pragma once
#include <string>
#include <vector>

#include "server/poold/options.h"

namespace gpupool::server {

// Returns the exit status: 0 after SIGTERM or SIGINT, kExitFailure if poold could not start (reason on
// stderr). `arguments`: of main(), for upgrades.
int start_daemon(const ServerOptions& options, const std::vector<std::string>& arguments);

}  // namespace gpupool::server
