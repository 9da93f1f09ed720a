// The pool as Prometheus reads it. What each metric means: docs/operations.md.
#pragma once
#include <string>

#include "protocol/control/pool_admin.pb.h"

namespace gpupool::scheduler {

std::string metrics_text(const pool::PoolSnapshot& snapshot);
// Of one that does not lead.
std::string metrics_text_of_follower();

}  // namespace gpupool::scheduler
