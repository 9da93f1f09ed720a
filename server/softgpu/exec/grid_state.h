// One submitted grid on its way through the pool. Internal to exec/.
//
// Blocks are claimed in ascending order through `next`, so a block that waits for one with a smaller number waits for one
// that runs or has run. References: one while blocks are unfinished, one while it is queued, one per claimed chunk.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "server/softgpu/exec/child_launches.h"
#include "server/softgpu/exec/grid.h"
#include "server/softgpu/exec/recycled.h"

namespace gpupool::softgpu {

struct Grid : Recycled<Grid> {
  GridRequest request;
  std::function<void(GridResult)> done;
  std::unique_ptr<ChildLaunches> children;  // null: its threads cannot start anything
  uint32_t depth = 0;          // how many launches by kernels are above it
  BlockContext context{};      // as every block sees it, but for its own index, window and executor
  uint64_t blocks = 0;
  uint64_t params_bytes = 0;
  uint32_t cluster_blocks = 1; // they start together, on one worker
  uint32_t threads = 0;        // per block
  uint32_t stack_class = 0;
  bool in_loops = false;       // loop_entry is used
  unsigned workers = 0;        // that may run it
  bool may_run_on(unsigned worker) const { return !request.multiprocessors || request.multiprocessors->test(worker); }
  bool takes_turns() const { return !request.multiprocessors; }

  alignas(64) std::atomic<uint64_t> next{0};        // block to claim; runs past `blocks`
  alignas(64) std::atomic<uint64_t> finished{0};    // blocks that ran or were skipped
  alignas(64) std::atomic<bool> aborted{false};     // after a fault: nothing more starts, spinning blocks stop
  std::atomic<uint32_t> references{2};
  std::atomic<uint64_t> start{0}, away_before{0};   // nanoseconds
  GridResult result;           // under the executor's mutex, with what follows
  bool result_settled = false; // the first fault writes it, and nobody does after the end
  Grid* previous = nullptr;    // among the unfinished
  Grid* following = nullptr;
};

}  // namespace gpupool::softgpu
