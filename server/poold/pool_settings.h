// Derives the settings of WorkerPool from poold's options. No side effects.
#pragma once
#include <memory>

#include "server/poold/options.h"
#include "server/poold/workers/worker_pool.h"

namespace gpupool::server {

WorkerPool::Settings pool_settings(const ServerOptions& options, WorkerProgram program,
                                   std::shared_ptr<Cgroups> cgroups, SuspendedFiles::Settings suspended);

}  // namespace gpupool::server
