// Checks the workers' confinement, for --check-host and at poold's start. Runs on the main thread before
// others are started.
#pragma once
#include <functional>
#include <memory>

#include "server/poold/options.h"
#include "server/poold/upgrade/state.pb.h"

namespace gpupool::server {

// Prints the layers. Returns the exit status: 0 if all are effective, else kExitFailure.
int check_host(const ServerOptions& options);

// Fails if a worker could read the TLS key, the node's token or the key of suspended sessions. With
// --insecure or --sandbox=off it succeeds, and check_confinement() finds these secrets.
Result<void> check_secrets(const ServerOptions& options, const std::string& device_library);

// Checks the layers, and returns a function that logs a warning for each layer that is not effective and for
// each secret that a worker could read. Forks, so call this before starting threads, and the returned
// function once the log has its thread.
std::function<void()> check_confinement(const ServerOptions& options, const std::string& device_library);

// The groups that limit workers. Null without a sandbox or without a delegated cgroup; a host without cgroup
// delegation is reported with the confinement layers. `previous`: what this process's previous program knew;
// null: there was none.
std::shared_ptr<Cgroups> open_cgroups(const ServerOptions& options, const upgrade::State* previous);

}  // namespace gpupool::server
