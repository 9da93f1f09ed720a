// What one tenant may use of each GPU of a host, and of the host. Zero means no limit unless said otherwise.
#pragma once
#include <cstdint>

namespace gpupool::quota {

enum class Mode : uint32_t {
  elastic,  // may use what others leave idle, and gives it back when they want it
  hard,     // never more than its share
  partition,  // multiprocessors of its own, and no turns with other tenants
};
inline const char* name_of(Mode mode) {
  return mode == Mode::partition ? "partition" : mode == Mode::hard ? "hard" : "elastic";
}

enum class Priority : uint32_t { best_effort, normal, latency_critical };

struct Quota {
  uint64_t memory_bytes = 0;             // of each GPU; what the tenant's sessions have together
  uint64_t guaranteed_memory_bytes = 0;  // of it, what is never moved to host memory; only with oversubscription
  uint32_t compute_percent = 100;        // of each GPU's time, 1 to 100; under contention a weight; of its multiprocessors (partition)
  Mode mode = Mode::elastic;
  Priority priority = Priority::normal;
  uint64_t to_device_bytes_per_second = 0;
  uint64_t to_host_bytes_per_second = 0;
  uint32_t sessions = 0;
  uint32_t streams = 0;        // this and below: of each session
  uint32_t modules = 0;
  uint64_t queued_bytes = 0;   // commands and data that have come and are not executed yet
  bool operator==(const Quota&) const = default;
};

}  // namespace gpupool::quota
