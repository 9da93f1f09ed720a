// The sessions of leases: what Leases (node/leases.h) asks for, in terms of WorkerPool. poold's thread.
#pragma once
#include "server/poold/admin/administration.h"
#include "server/poold/node/leases.h"
#include "server/poold/workers/worker_pool.h"

namespace gpupool::server {

// Both must outlive what is returned; the administration need not exist before it is used.
Leases::Host host_of_leases(WorkerPool& pool, const Administration& administration);
// Returns what a session has used, bounded by what is possible.
UsageCounters::Session usage_of(const SessionView& view, const std::vector<control::Device>& devices);

}  // namespace gpupool::server
