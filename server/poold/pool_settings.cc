#include "server/poold/pool_settings.h"

#include <utility>

namespace gpupool::server {

WorkerPool::Settings pool_settings(const ServerOptions& options, WorkerProgram program,
                                   std::shared_ptr<Cgroups> cgroups, SuspendedFiles::Settings suspended) {
  return {.program = std::move(program),
          .cgroups = std::move(cgroups),
          .idle_workers = options.idle_workers,
          .max_sessions = options.max_sessions,
          .image_cache_bytes = uint64_t{options.image_cache_mib} << 20,
          .code_cache_bytes = uint64_t{options.code_cache_mib} << 20,
          .driver_cache = options.device != "softgpu",
          .host_memory_for_idle = uint64_t{options.host_memory_for_idle_mib} << 20,
          .host_memory_for_checkpoints = uint64_t{options.host_memory_for_checkpoints_mib} << 20,
          .dead_peer_timeout = options.dead_peer_timeout,
          .resume_timeout = options.resume_timeout,
          .suspended = std::move(suspended),
          .peers = *Networks::parse(options.peers),
          .turns = {.yield_timeout = options.turn_limit}};
}

}  // namespace gpupool::server
