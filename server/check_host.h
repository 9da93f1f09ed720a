// What poold says of its workers' confinement: by --check-host, and at its start.
#pragma once
#include "server/options.h"

namespace gpupool::server {

// Prints the layers. The exit status: 0 if all hold, else kExitFailure.
int check_host(const ServerOptions& options);

// Refuses to start where a worker could read the TLS key or the node's token; with --insecure and --sandbox=off warn_of_confinement() says so.
Result<void> check_secrets(const ServerOptions& options, const std::string& device_library);

// Logs a warning for each layer that does not hold, and for each secret that a worker could read.
void warn_of_confinement(const ServerOptions& options, const std::string& device_library);

}  // namespace gpupool::server
