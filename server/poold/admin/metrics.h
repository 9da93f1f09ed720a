// Writes a snapshot in Prometheus's text format. docs/operations.md describes the metrics.
#pragma once
#include <string>

#include "protocol/control/admin.pb.h"

namespace gpupool::server {

std::string metrics_text(const admin::Snapshot& snapshot);

}  // namespace gpupool::server
