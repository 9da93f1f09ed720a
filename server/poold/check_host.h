// Checks the workers' confinement, for --check-host and at poold's start. Runs on the main thread before
// others are started.
#pragma once
#include <functional>

#include "server/poold/options.h"

namespace gpupool::server {

// Prints the layers. Returns the exit status: 0 if all are effective, else kExitFailure.
int check_host(const ServerOptions& options);

// Fails if a worker could read the TLS key or the node's token. With --insecure or --sandbox=off it succeeds,
// and check_confinement() finds these secrets.
Result<void> check_secrets(const ServerOptions& options, const std::string& device_library);

// Checks the layers, and returns a function that logs a warning for each layer that is not effective and for
// each secret that a worker could read. Forks, so call this before starting threads, and the returned
// function once the log has its thread.
std::function<void()> check_confinement(const ServerOptions& options, const std::string& device_library);

}  // namespace gpupool::server
