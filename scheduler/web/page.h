// The state that the web page polls. Served by service/web_page.cc. Pure functions.
#pragma once
#include <string>

#include "protocol/control/pool_admin.pb.h"
#include "scheduler/web/gpu_utilization.h"

namespace gpupool::pool {

// Returns json_of(snapshot) with "compute_milli_used" (null: unknown) added to the pool and to each GPU.
std::string page_json(const PoolSnapshot& snapshot, const GpuUtilization& utilization);

}  // namespace gpupool::pool
