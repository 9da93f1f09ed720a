// Where poold is administered and monitored, by its options. On poold's thread.
#pragma once
#include "common/result.h"
#include "server/poold/admin/administration.h"
#include "server/poold/listeners.h"

namespace gpupool::server {

// Fails if --admin-socket or --metrics cannot be served. A failure of the default socket is only a warning.
Result<void> serve_administration(Administration& administration, const ServerOptions& options,
                                  const Addresses& addresses);

}  // namespace gpupool::server
