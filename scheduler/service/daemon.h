// pool-scheduler from its start to its end.
#pragma once
#include "scheduler/service/options.h"

namespace gpupool::scheduler {

// The exit status.
int run_daemon(const Options& options);

}  // namespace gpupool::scheduler
