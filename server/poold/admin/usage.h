// Sums of what sessions have used, by tenant and by GPU, including ended sessions. poold's thread.
//
// Workers write these numbers into their session pages. A compromised worker can falsify its own tenant's;
// those of a GPU, which concern all tenants, are limited to possible values.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "server/poold/upgrade/state.pb.h"
#include "server/poold/workers/worker_pool.h"

namespace gpupool::server {

struct Usage {
  uint64_t gpu_nanoseconds = 0;
  std::vector<uint64_t> gpu_nanoseconds_by_gpu;  // sums of plausible_gpu_time()
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
  uint64_t gpu_time(size_t gpu) const {
    return gpu < gpu_nanoseconds_by_gpu.size() ? gpu_nanoseconds_by_gpu[gpu] : 0;
  }
};

// Reported GPU time in nanoseconds, limited to the session's age.
uint64_t plausible_gpu_time(const SessionView& session, size_t gpu);

struct EndedSessionsUsage {
  void add(const SessionView& session);
  void denied(const std::string& tenant) { ++tenants[tenant].denied; }
  // Adds the usage of a lease that has ended to its tenant's.
  void merge_into_tenant(const std::string& lease, const std::string& tenant);
  // For this process's next program (server/poold/upgrade).
  void save(upgrade::State& to) const;
  void restore(const upgrade::State& from);

  std::map<std::string, Usage> tenants;
  std::vector<uint64_t> gpu_nanoseconds = std::vector<uint64_t>(quota::kMostGpus);
};

}  // namespace gpupool::server
