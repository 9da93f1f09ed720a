// What sessions have used, added up: for each tenant and GPU, with the sessions that have ended. poold's one thread.
//
// The numbers come from pages that workers write; whoever took over a worker can make its own tenant's wrong. Those of a GPU,
// which concern all, are held to what is possible.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "server/worker_pool.h"

namespace gpupool::server {

struct Usage {
  uint64_t gpu_nanoseconds = 0;
  std::vector<uint64_t> gpu_nanoseconds_by_gpu;  // no session can have used one for longer than it has lived
  uint64_t throttled_nanoseconds = 0;
  uint64_t bytes_from_client = 0;
  uint64_t bytes_to_client = 0;
  uint64_t calls = 0;
  uint64_t errors = 0;
  uint64_t over_quota = 0;
  uint64_t sessions = 0;
  uint64_t denied = 0;

  void add(const SessionView& session);
  void add(const Usage& other);
  uint64_t gpu_time(size_t gpu) const { return gpu < gpu_nanoseconds_by_gpu.size() ? gpu_nanoseconds_by_gpu[gpu] : 0; }
};

// No session can have used a GPU for longer than it has lived.
uint64_t believable_gpu_time(const SessionView& session, size_t gpu);

struct EndedUsage {
  void add(const SessionView& session);
  void denied(const std::string& tenant) { ++tenants[tenant].denied; }
  // What a lease has used is the tenant's, whose it was.
  void fold(const std::string& lease, const std::string& tenant);

  std::map<std::string, Usage> tenants;
  std::vector<uint64_t> gpu_nanoseconds = std::vector<uint64_t>(quota::kMostGpus);
};

}  // namespace gpupool::server
