// The scheduler's web page: one self-contained HTML file, and the JSON that it polls every two seconds.
// Served by service/daemon.cc.
#pragma once
#include <string>

#include "protocol/control/pool_admin.pb.h"
#include "scheduler/web/history.h"

namespace gpupool::pool {

std::string page_html();
// Returns json_of(snapshot) with "history": [[at_ms, compute_milli_leased, compute_milli, waiting], ...]
// added.
std::string page_json(const PoolSnapshot& snapshot, const History& history);

}  // namespace gpupool::pool
