// The sessions of leases: what Leases (node/leases.h) asks for, in terms of WorkerPool. poold's thread.
#pragma once
#include "server/poold/node/leases.h"
#include "server/poold/workers/worker_pool.h"

namespace gpupool::server {

// The pool must outlive what is returned.
Leases::Host host_of_leases(WorkerPool& pool);

}  // namespace gpupool::server
