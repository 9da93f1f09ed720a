// A snapshot as Prometheus reads it. What each metric means: docs/operations.md.
#pragma once
#include <string>

#include "protocol/control/admin.pb.h"

namespace gpupool::server {

constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

std::string metrics_text(const admin::Snapshot& snapshot);

}  // namespace gpupool::server
