// poold from its options to its end.
#pragma once
#include "server/options.h"

namespace gpupool::server {

// Returns the exit status: 0 after SIGTERM or SIGINT, kExitFailure when it could not start (stderr says why).
int run_daemon(const ServerOptions& options);

}  // namespace gpupool::server
