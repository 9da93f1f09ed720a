// Kernels that launch kernels (dynamic parallelism). A grid collects what its threads launch; when its last block is done,
// they run one after the other in the order of their launches, those of the tail stream last, and their own children before
// the next; only then is the grid done. Inside a kernel nobody can wait for a child, so none can tell the difference.
// Thread-safe; nothing throws.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>

#include "server/softgpu/exec/grid.h"

namespace gpupool::softgpu {

// The kernels that a grid may launch: those of its own program, by the addresses that its code has for them.
class ChildKernels {
 public:
  virtual ~ChildKernels() = default;
  virtual std::optional<uint32_t> parameter_bytes(uint64_t kernel) const = 0;  // nothing: no such kernel
  // Fills in what belongs to the kernel. False: it cannot run in the request's shape. May compile: not on a fiber.
  virtual bool prepare(uint64_t kernel, GridRequest& request) const = 0;
};

class ChildLaunches {
 public:
  static constexpr size_t kMost = 2048;  // at a time, as CUDA's default (cudaLimitDevRuntimePendingLaunchCount)

  struct Launch {
    uint64_t kernel = 0;
    GridRequest request;
  };

  ~ChildLaunches();
  // Memory for the kernel's parameters; 0: no such kernel, no memory, or too many at a time.
  uint64_t buffer(const ChildKernels& kernels, uint64_t kernel, const uint32_t* grid, const uint32_t* block, uint32_t shared_bytes);
  // A cudaError_t. `buffer` is what buffer() gave, once; `stream` a cudaStream_t of the device.
  uint32_t launch(uint64_t buffer, uint64_t stream);
  std::optional<Launch> next();  // when no thread of the grid runs any more

 private:
  std::mutex mutex_;
  std::map<uint64_t, Launch> buffers_;  // by address
  std::deque<Launch> launched_, tail_;
};

}  // namespace gpupool::softgpu
