// Runs grids: the compute part of one softgpu device in this process.
//
// One GridExecutor per device and process. It owns a pool of host threads; blocks of all submitted grids run on them,
// each block on one thread, its CUDA threads in loops or on fibers. Grids start in the order of submission and overlap
// when a grid has no blocks left to start. Thread-safe. Faults end the grid (blocks not started are skipped) and are
// reported to its completion callback; they never end the process.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/softgpu/exec/abi.h"

namespace gpupool::softgpu {

struct GridRequest {
  KernelCode code;
  std::string kernel_name;       // for messages
  uint32_t grid_dim[3] = {1, 1, 1};
  uint32_t block_dim[3] = {1, 1, 1};
  uint32_t static_shared_bytes = 0;
  uint32_t dynamic_shared_bytes = 0;
  uint64_t module_data = 0;
  bool cooperative = false;      // all blocks must make progress together (grid synchronisation)
  std::vector<std::byte> params; // packed
};

struct GridResult {
  FaultKind fault = FaultKind::none;
  uint64_t address = 0;          // faulting address, when there is one
  std::string detail;            // one line for the log: kernel, block, thread, address, or the assertion's text
  uint64_t busy_nanoseconds = 0; // GPU time used: time for which the grid held the device
};

class DeviceTurns;  // memory/shared_device.h: time slices between processes that share the device

class GridExecutor {
 public:
  // threads 0: one per core. `turns` may be null (device not shared); it must outlive the executor.
  static std::unique_ptr<GridExecutor> create(unsigned threads, DeviceTurns* turns);
  virtual ~GridExecutor() = default;  // waits for running blocks, drops grids not started
  // `done` runs on a pool thread, exactly once; it must not block.
  virtual void submit(GridRequest request, std::function<void(GridResult)> done) = 0;
};

// Device printf text collected so far by kernels of this process, oldest first; empties the buffer. Thread-safe.
// The runtime writes it to stdout at the synchronisation points CUDA names.
std::string take_printf_output();

}  // namespace gpupool::softgpu
