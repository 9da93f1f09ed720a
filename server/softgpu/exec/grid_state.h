// The state of one submitted grid in the pool. Internal to exec/; shared by the worker threads.
//
// Blocks are claimed in ascending order through `next`, so a block that waits for one with a smaller number
// waits for one that is running or has run. References: one while blocks are unfinished, one while queued,
// one per claimed chunk.
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
  std::unique_ptr<ChildLaunches> children;  // null: the kernels cannot launch children
  uint32_t depth = 0;                       // nesting depth: 0 for a grid launched from the host
  BlockContext context{};  // as seen by every block, except for its index, window and executor
  uint64_t blocks = 0;
  uint64_t params_bytes = 0;
  uint32_t cluster_blocks = 1;  // blocks of a cluster start together on one worker
  uint32_t threads = 0;         // per block
  uint32_t stack_class = 0;
  bool in_loops = false;  // loop_entry is used
  unsigned workers = 0;   // number of workers that may run it
  bool may_run_on(unsigned worker) const {
    return !request.multiprocessors || request.multiprocessors->test(worker);
  }
  bool takes_turns() const { return !request.multiprocessors; }

  alignas(64) std::atomic<uint64_t> next{0};      // next block to claim; runs past `blocks`
  alignas(64) std::atomic<uint64_t> finished{0};  // blocks that ran or were skipped
  alignas(64) std::atomic<bool> aborted{false};   // after a fault or cancellation: no more blocks start
  std::atomic<uint32_t> references{2};
  std::atomic<uint64_t> start{0}, without_turn_before{0};  // nanoseconds
  GridResult result;          // this and the members below are guarded by Pool::mutex_
  bool result_final = false;  // set by the first fault or by completion; `result` is final then
  Grid* previous = nullptr;   // list of unfinished grids
  Grid* following = nullptr;
};

}  // namespace gpupool::softgpu
