// Limits of one tenant on a host and on each of its GPUs. 0 means no limit unless said otherwise.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>

#include "common/text/units.h"

namespace gpupool::quota {

enum class Mode : uint32_t {
  elastic,    // may use what others leave idle, until they want it
  hard,       // never more than its share
  partition,  // has multiprocessors of its own; takes no turns with other tenants
};
inline const char* name_of(Mode mode) {
  return mode == Mode::partition ? "partition" : mode == Mode::hard ? "hard" : "elastic";
}

enum class Priority : uint32_t { best_effort, normal, latency_critical };

using gpupool::kWholeGpu;

// Limits that apply if a quota limits memory but not these counts: each session, stream and module takes
// device memory that only the driver accounts for.
constexpr uint32_t kUsualSessions = 64, kUsualStreams = 4096, kUsualModules = 16384;

// Limits on one GPU.
struct GpuShare {
  uint64_t memory_bytes = 0;  // of all the tenant's sessions together
  // Part of it that never moves to host memory; only with oversubscription.
  uint64_t guaranteed_memory_bytes = 0;
  // Thousandths of its time, 1 to 1000, under contention a weight; in mode partition, of its multiprocessors.
  uint32_t compute_milli = kWholeGpu;
  bool operator==(const GpuShare&) const = default;
};

// Limits on one GPU that differ from those on every GPU.
struct GpuLimits {
  std::optional<uint64_t> memory_bytes;
  std::optional<uint64_t> guaranteed_memory_bytes;
  std::optional<uint32_t> compute_milli;
  bool operator==(const GpuLimits&) const = default;
};

struct Quota {
  GpuShare each;                       // for every GPU without limits of its own
  std::map<uint32_t, GpuLimits> gpus;  // by the host's GPU number
  Mode mode = Mode::elastic;
  Priority priority = Priority::normal;
  uint64_t to_device_bytes_per_second = 0;
  uint64_t to_host_bytes_per_second = 0;
  uint32_t sessions = 0;
  uint32_t streams = 0;       // of each session
  uint32_t modules = 0;       // of each session
  uint64_t queued_bytes = 0;  // of each session: received commands and data that are not executed yet
  bool operator==(const Quota&) const = default;

  bool limits_memory() const {
    return each.memory_bytes != 0 || std::any_of(gpus.begin(), gpus.end(), [](const auto& gpu) {
             return gpu.second.memory_bytes.value_or(0) != 0;
           });
  }
  // 0: no limit.
  uint32_t most_sessions() const { return sessions == 0 && limits_memory() ? kUsualSessions : sessions; }
  uint32_t most_streams() const { return streams == 0 && limits_memory() ? kUsualStreams : streams; }
  uint32_t most_modules() const { return modules == 0 && limits_memory() ? kUsualModules : modules; }

  GpuShare with(const GpuLimits& limits) const {
    return {limits.memory_bytes.value_or(each.memory_bytes),
            limits.guaranteed_memory_bytes.value_or(each.guaranteed_memory_bytes),
            limits.compute_milli.value_or(each.compute_milli)};
  }
  GpuShare of(uint32_t gpu) const {
    const auto found = gpus.find(gpu);
    return found == gpus.end() ? each : with(found->second);
  }
};

}  // namespace gpupool::quota
