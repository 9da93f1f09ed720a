// Runs poold with the given options until a signal ends it. main() calls it on the main thread.
#pragma once
#include "server/poold/options.h"

namespace gpupool::server {

// Returns the exit status: 0 after SIGTERM or SIGINT, kExitFailure if poold could not start (reason on
// stderr).
int run_daemon(const ServerOptions& options);

}  // namespace gpupool::server
