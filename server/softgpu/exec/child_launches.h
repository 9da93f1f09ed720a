// What a grid's kernels have started through the device runtime (dynamic parallelism): kernels, copies and fills. A grid
// collects them; when its last block is done, they run one after the other in their order, those of the tail stream last, and
// their own children before the next; only then is the grid done. Inside a kernel nobody can wait for a child, so none can
// tell the difference, and streams and events need be no more than names.
// Thread-safe; nothing throws.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "server/softgpu/exec/grid.h"
#include "server/softgpu/exec/kernel_services.h"

namespace gpupool::softgpu {

// cudaError_t
enum class RuntimeError : uint32_t {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  invalid_configuration = 9,
  invalid_pitch = 12,
  invalid_direction = 21,
  too_deep = 65,
  too_many_pending = 69,
  invalid_function = 98,
  invalid_device = 101,
  unsupported_limit = 215,
  invalid_handle = 400,
};

class ChildLaunches {
 public:
  static constexpr size_t kMost = 2048;  // at a time, as CUDA's default (cudaLimitDevRuntimePendingLaunchCount)

  struct Launch {
    uint64_t kernel = 0;  // 0: the request has code of its own
    GridRequest request;
  };
  struct Shape {
    const uint32_t *grid, *block;  // three each
    uint32_t shared_bytes;
  };

  ~ChildLaunches();
  // Memory for a kernel's parameters.
  RuntimeError buffer(const KernelServices& services, uint64_t kernel, const Shape& shape, uint64_t* address);
  RuntimeError buffer(uint64_t bytes, uint64_t* address);  // of a kernel to be named by the launch
  // `address`: what buffer() gave, once; `stream`: a cudaStream_t of the device's.
  RuntimeError launch(uint64_t address, uint64_t stream);
  RuntimeError launch(const KernelServices& services, uint64_t kernel, const Shape& shape, uint64_t address, uint64_t stream);
  RuntimeError launch(GridRequest request, uint64_t stream);
  std::optional<Launch> next();  // when no thread of the grid runs any more

  // Streams and events of the grid's own.
  enum class Kind : uint64_t { stream = 0, event = 1 };
  RuntimeError create(Kind kind, uint64_t* handle);
  RuntimeError destroy(Kind kind, uint64_t handle);
  bool knows(Kind kind, uint64_t handle);  // streams: also CUDA's own

 private:
  bool full() const { return buffers_.size() + launched_.size() + tail_.size() >= kMost; }
  bool knows_locked(Kind kind, uint64_t handle) const;
  RuntimeError put(Launch launch, uint64_t stream);

  std::mutex mutex_;
  std::map<uint64_t, Launch> buffers_;  // by address
  std::deque<Launch> launched_, tail_;
  std::set<uint64_t> handles_;
  uint64_t last_handle_ = 0;
};

}  // namespace gpupool::softgpu
