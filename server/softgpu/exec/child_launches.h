// Work that a grid's kernels submit through the device runtime (dynamic parallelism): kernels, copies and
// fills.
//
// A grid collects this work. After its last block it runs the items one after another in submission order,
// those of the tail stream last, each with its own children before the next; then the grid is complete.
// Kernels cannot wait for their children, so this order satisfies all streams and events, which are therefore
// mere handles. Thread-safe. Does not throw.
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

// Values of cudaError_t.
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
  static constexpr size_t kMaxPendingLaunches =
      2048;  // CUDA's default of cudaLimitDevRuntimePendingLaunchCount

  struct Launch {
    uint64_t kernel = 0;  // 0: the request already contains its code
    GridRequest request;
  };
  struct Shape {
    const uint32_t *grid, *block;  // three elements each
    uint32_t shared_bytes;
  };

  ~ChildLaunches();
  // Allocates memory for the parameters of `kernel`, to be launched in this shape.
  RuntimeError buffer(const KernelServices& services, uint64_t kernel, const Shape& shape, uint64_t* address);
  RuntimeError buffer(uint64_t bytes, uint64_t* address);  // the kernel is named by launch()
  // Launches the kernel whose parameters lie at `address`, an address returned by buffer(), and frees them.
  // `stream`: a cudaStream_t of the device runtime.
  RuntimeError launch(uint64_t address, uint64_t stream);
  RuntimeError launch(const KernelServices& services, uint64_t kernel, const Shape& shape, uint64_t address,
                      uint64_t stream);
  RuntimeError launch(GridRequest request, uint64_t stream);
  std::optional<Launch> next();  // called once no thread of the grid runs any more

  // Streams and events created by the grid's kernels.
  enum class Kind : uint64_t { stream = 0, event = 1 };
  RuntimeError create(Kind kind, uint64_t* handle);
  RuntimeError destroy(Kind kind, uint64_t handle);
  bool knows(Kind kind, uint64_t handle);  // streams: includes CUDA's built-in handles

 private:
  bool full() const { return buffers_.size() + launched_.size() + tail_.size() >= kMaxPendingLaunches; }
  bool knows_locked(Kind kind, uint64_t handle) const;
  RuntimeError put(Launch launch, uint64_t stream);

  std::mutex mutex_;
  std::map<uint64_t, Launch> buffers_;  // by address
  std::deque<Launch> launched_, tail_;
  std::set<uint64_t> handles_;
  uint64_t last_handle_ = 0;
};

}  // namespace gpupool::softgpu
