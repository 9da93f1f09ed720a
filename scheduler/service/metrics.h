// The Prometheus metrics of pool-scheduler (docs/operations.md explains each). Pure functions; called by
// daemon.cc.
#pragma once
#include <string>

#include "protocol/control/pool_admin.pb.h"

namespace gpupool::scheduler {

std::string metrics_text(const pool::PoolSnapshot& snapshot);
// For a scheduler that does not lead.
std::string metrics_text_of_follower();

}  // namespace gpupool::scheduler
