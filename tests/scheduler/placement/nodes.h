// Node specifications and requests for the placement tests.
#pragma once
#include <string>

#include "scheduler/placement/cluster.h"

namespace gpupool::placement {

constexpr uint64_t kGib = 1ull << 30;

inline NodeSpec node(std::string name, int gpus, std::string model = "A", int64_t cpu_milli = 64'000,
                     uint64_t gpu_memory = 0) {
  return {.name = std::move(name),
          .model = std::move(model),
          .gpus = gpus,
          .gpu_memory = gpu_memory,
          .cpu_milli = cpu_milli,
          .host_memory = static_cast<int64_t>(256 * kGib)};
}

inline NodeSpec node_at(std::string name, std::string zone, std::string rack, int gpus) {
  NodeSpec spec = node(std::move(name), gpus);
  spec.zone = std::move(zone);
  spec.rack = std::move(rack);
  return spec;
}

inline Request share(int milli, int64_t cpu_milli = 0) {
  return {.gpus = 1, .milli = milli, .cpu_milli = cpu_milli};
}
inline Request whole(int gpus, int64_t cpu_milli = 0) {
  return {.gpus = gpus, .milli = kWholeGpu, .cpu_milli = cpu_milli};
}

}  // namespace gpupool::placement
