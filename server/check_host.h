// What poold says of its workers' confinement: by --check-host, and at its start.
#pragma once
#include <functional>

#include "server/options.h"

namespace gpupool::server {

// Prints the layers. The exit status: 0 if all hold, else kExitFailure.
int check_host(const ServerOptions& options);

// Refuses to start where a worker could read the TLS key or the node's token; with --insecure and --sandbox=off look_at_confinement() finds that.
Result<void> check_secrets(const ServerOptions& options, const std::string& device_library);

// What it gives logs a warning for each layer that does not hold, and for each secret that a worker could read. Looks by forking, so it comes before
// other threads; the log must not be written before a thread writes it.
std::function<void()> look_at_confinement(const ServerOptions& options, const std::string& device_library);

}  // namespace gpupool::server
