// The scheduler's web page: one HTML file without anything from elsewhere, and the JSON that it draws every two seconds.
#pragma once
#include <string>

#include "protocol/control/pool_admin.pb.h"
#include "scheduler/web/history.h"

namespace gpupool::pool {

std::string page_html();
// json_of(PoolSnapshot), and "history": [[at_ms, compute_milli_leased, compute_milli, waiting], ...].
std::string page_json(const PoolSnapshot& snapshot, const History& history);

}  // namespace gpupool::pool
