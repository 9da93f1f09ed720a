// The thread pool behind a GridExecutor. Internal to exec/.
//
// Pool holds the queue of grids and wakes sleeping workers. Worker is one pool thread with its fibers, its
// claimed chunk of blocks and its live blocks. A worker runs one block after another; it has several live
// blocks only if they spin: blocks of a cooperative grid that wait for each other, or blocks that wait for a
// later block or grid.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "server/softgpu/exec/block_run.h"
#include "server/softgpu/exec/fiber.h"
#include "server/softgpu/exec/grid_state.h"
#include "server/softgpu/exec/spin_lock.h"
#include "server/softgpu/memory/shared_device.h"

namespace gpupool::softgpu {

class Pool;

// Memory for kernel parameters in the reserved range, reused. Thread-safe.
class ParameterMemory {
 public:
  ~ParameterMemory();
  uint64_t allocate(uint64_t bytes);  // 0: out of memory
  void free(uint64_t address, uint64_t bytes);

 private:
  static constexpr uint64_t kBlock = 4096, kBlocksPerSlab = 64;
  SpinLock mutex_;
  std::vector<uint64_t> free_, slabs_;
};

class Worker {
 public:
  Worker(Pool& pool, unsigned number) : pool_(pool), number_(number) {}
  void run();  // body of the pool thread
  unsigned number() const { return number_; }

 private:
  bool step();
  bool claim(Grid** grid, uint64_t* index);
  bool start_block();
  std::unique_ptr<BlockRun> take_block();
  void run_first(std::unique_ptr<BlockRun> block, bool begun);
  void advance_live_blocks();
  bool finish_if_ended(BlockRun& block, SliceEnd end);
  void fault(BlockRun& block);
  void count_finished();
  void hold_turn();
  void drop_turn();
  void throttle_spinning();

  Pool& pool_;
  const unsigned number_;  // number of its multiprocessor
  StackContext own_stack_;
  FiberPool fibers_;
  std::vector<std::unique_ptr<BlockRun>> spare_, live_;
  Grid* grid_ = nullptr;  // grid of the claimed chunk; holds a reference
  uint64_t chunk_next_ = 0, chunk_end_ = 0;
  Grid* counted_ = nullptr;  // grid whose finished blocks are counted in uncounted_
  uint64_t uncounted_ = 0;
  bool holds_turn_ = false;
  uint32_t idle_rounds_ = 0;
  uint64_t idle_since_ = 0;  // nanoseconds; 0: not idle
};

class Pool final : public GridExecutor {
 public:
  Pool(unsigned threads, DeviceTurns* turns);
  ~Pool() override;
  void submit(GridRequest request, std::function<void(GridResult)> done) override;

  // --- For workers ---
  // Returns the first grid in the queue that the worker may run and that has blocks to claim, with a
  // reference; null if none.
  Grid* first_grid(unsigned worker);
  bool more_to_claim() const { return queued_.load(std::memory_order_relaxed) > 0; }
  bool more_than_one_queued() const { return queued_.load(std::memory_order_relaxed) > 1; }
  bool wait_for_work(unsigned worker, bool* long_idle);  // false: the pool is stopping
  void wake_helper(const Grid& grid);  // wakes a worker that may help with this grid or another queued one
  void block_starts(Grid& grid);
  void finish_blocks(Grid& grid, uint64_t count);
  void abort(Grid& grid, FaultKind kind, uint64_t address, std::string detail);
  void release(Grid* grid);
  void turn_taken();
  void turn_dropped();
  DeviceTurns* turns() const { return turns_; }

 private:
  void complete(Grid& grid);
  void copy_parameters(Grid& grid);
  void count_workers(Grid& grid);
  bool enter(Grid& grid, bool possible);
  void submit_at(uint32_t depth, GridRequest request, std::function<void(GridResult)> done);
  void run_children(uint32_t depth, std::shared_ptr<ChildLaunches> children, const KernelServices* services,
                    std::shared_ptr<const Multiprocessors> where, GridResult result,
                    std::function<void(GridResult)> done);
  void wake(const Multiprocessors* where, int most);  // where null: any worker

  DeviceTurns* const turns_;
  const unsigned thread_count_;
  ParameterMemory parameters_;
  SpinLock mutex_;
  std::deque<Grid*> queue_;     // grids with unclaimed blocks, oldest first
  Grid* unfinished_ = nullptr;  // list of all grids whose last block has not ended
  std::atomic<uint32_t> unfinished_count_{0};
  std::atomic<uint32_t> submissions_{0};
  uint64_t next_grid_id_ = 1;
  bool stopping_ = false;
  std::atomic<uint32_t> queued_{0};  // size of queue_
  std::atomic<uint32_t> epoch_{0};   // futex word: counts submissions
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<bool> spinning_{false};              // an idle worker polls epoch_ instead of sleeping
  std::atomic<bool> has_restricted_grids_{false};  // some grid may not run on all workers

  SpinLock turn_mutex_;
  uint32_t turn_holders_ = 0;              // workers of this process that hold the device's turn
  uint64_t dropped_at_ = 0;                // nanoseconds
  std::atomic<uint64_t> without_turn_{0};  // total time without the turn, in nanoseconds

  std::vector<std::thread> threads_;
};

uint64_t nanoseconds_now();  // monotonic

// Set while a worker completes a grid and has no other work. The first grid submitted by the completion runs
// on that worker, so no other worker needs to be woken.
extern thread_local const Worker* completing_worker;

}  // namespace gpupool::softgpu
