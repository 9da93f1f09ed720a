// Runs pool-scheduler: opens key, store, gRPC server and metrics, and serves until SIGTERM or SIGINT. Called
// by main().
#pragma once
#include "scheduler/service/options.h"

namespace gpupool::scheduler {

// Returns the exit status: 0, or kExitFailure after printing the error.
int run_daemon(const Options& options);

}  // namespace gpupool::scheduler
