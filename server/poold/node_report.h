// Reports of a pool's node to its scheduler: poold's GPUs, their use, and its state. poold's thread.
#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "protocol/control/admin.pb.h"
#include "protocol/control/hello.pb.h"
#include "protocol/control/pool.pb.h"
#include "server/poold/workers/worker_pool.h"

namespace gpupool::server {

// Returns a random id of this process, by which the scheduler recognises a restart.
std::string new_boot();
std::chrono::milliseconds now_ms();  // since 1970
pool::Inventory inventory_of(const std::vector<control::Device>& devices,
                             const std::vector<std::string>& addresses);
// Sums up the broken connections and the suspensions of the tenant's sessions.
void describe_breaks(const WorkerPool& pool, const std::string& tenant, pool::SessionBreaks& sum);
// Fills in what the node's heartbeats say of its readiness and its GPUs.
void describe_state(const admin::Snapshot& now, bool stopping, pool::NodeReport& report);

}  // namespace gpupool::server
