// The free resources of one node (NodeState), and the part of a request that goes to one node (Shape).
// Values; any thread; no failures.
#pragma once
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "scheduler/placement/request.h"

namespace gpupool::placement {

// The resources that a request needs on one node. Requests without group rules and with equal shapes are
// placed in the same way.
struct Shape {
  uint16_t gpus = 0;
  uint16_t milli = 0;
  uint64_t memory_bytes = 0;
  uint64_t models = 0;  // bitmask of acceptable models
  int64_t cpu_milli = 0;
  int64_t host_memory = 0;
  bool operator==(const Shape&) const = default;
};

struct ShapeHash {
  size_t operator()(const Shape& shape) const {
    uint64_t hash = 0;
    for (const uint64_t word :
         {uint64_t{shape.gpus} << 16 | shape.milli, shape.memory_bytes, shape.models,
          static_cast<uint64_t>(shape.cpu_milli), static_cast<uint64_t>(shape.host_memory)}) {
      hash = std::rotl((hash ^ word) * 0x9e3779b97f4a7c15ull,
                       29);  // 2^64 divided by the golden ratio, as in Knuth's multiplicative hashing
    }
    return hash;
  }
};

struct NodeState {
  int64_t cpu_milli = 0;    // free
  int64_t host_memory = 0;  // free
  uint64_t gpu_memory = 0;  // total bytes of one GPU
  uint8_t gpus = 0;
  uint8_t model = 0;
  bool open = false;                                     // present and not drained
  std::array<uint16_t, kMaxGpusPerNode> milli{};         // free
  std::array<uint64_t, kMaxGpusPerNode> memory_bytes{};  // free
  bool operator==(const NodeState&) const = default;

  bool gpu_fits(int gpu, const Shape& shape) const {
    return milli[gpu] >= shape.milli && memory_bytes[gpu] >= shape.memory_bytes;
  }

  // Returns a GPU's free share in thousandths: the smaller one of its free compute and its free memory.
  int level(int gpu) const { return level_of(milli[gpu], memory_bytes[gpu]); }
  int level_of(int free_milli, uint64_t free_memory) const {
    if (gpu_memory == 0) return free_milli;
    const int by_memory =
        static_cast<int>(static_cast<unsigned __int128>(free_memory) * kWholeGpu / gpu_memory);
    return free_milli < by_memory ? free_milli : by_memory;
  }
  // Returns level() after one more share of this shape on the GPU.
  int level_after(int gpu, const Shape& shape) const {
    return shape.milli == kWholeGpu
               ? 0
               : level_of(milli[gpu] - shape.milli, memory_bytes[gpu] - shape.memory_bytes);
  }

  int fitting_gpus(const Shape& shape) const {
    int count = 0;
    for (int gpu = 0; gpu < gpus; ++gpu) count += gpu_fits(gpu, shape);
    return count;
  }
  bool fits(const Shape& shape) const {
    if (!open || cpu_milli < shape.cpu_milli || host_memory < shape.host_memory) return false;
    return shape.gpus == 0 || ((shape.models >> model & 1) != 0 && fitting_gpus(shape) >= shape.gpus);
  }

  int free_milli() const {
    int sum = 0;
    for (int gpu = 0; gpu < gpus; ++gpu) sum += milli[gpu];
    return sum;
  }
};

}  // namespace gpupool::placement
