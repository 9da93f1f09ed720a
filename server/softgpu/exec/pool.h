// The pool of threads behind a GridExecutor. Internal to exec/.
//
// Pool: the queue of grids and who sleeps. Worker: one pool thread with its fibers, its claimed chunk of blocks and the
// blocks that live on it. A worker runs one block after the other; several live on it at once only when they spin: blocks
// of a cooperative grid that wait for each other, or blocks that wait for a later block or grid.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "server/softgpu/exec/block_run.h"
#include "server/softgpu/exec/spin_lock.h"
#include "server/softgpu/exec/fiber.h"
#include "server/softgpu/exec/grid_state.h"
#include "server/softgpu/memory/shared_device.h"

namespace gpupool::softgpu {

class Pool;

// Blocks of the parameter sizes that occur, in the reserved range, reused.
class ParameterMemory {
 public:
  ~ParameterMemory();
  uint64_t take(uint64_t bytes);  // 0: no memory
  void give(uint64_t address, uint64_t bytes);

 private:
  static constexpr uint64_t kBlock = 4096, kBlocksPerSlab = 64;
  SpinLock mutex_;
  std::vector<uint64_t> free_, slabs_;
};

class Worker {
 public:
  Worker(Pool& pool, unsigned number) : pool_(pool), number_(number) {}
  void run();  // the thread's body
  unsigned number() const { return number_; }

 private:
  bool step();
  bool claim(Grid** grid, uint64_t* index);
  bool start_block();
  std::unique_ptr<BlockRun> take_block();
  void run_first(std::unique_ptr<BlockRun> block, bool begun);
  void advance_others();
  bool settle(BlockRun& block, SliceEnd end);
  void fault(BlockRun& block);
  void count_finished();
  void hold_turn();
  void drop_turn();
  void back_off();

  Pool& pool_;
  const unsigned number_;                       // the multiprocessor that it is
  StackContext own_stack_;
  FiberPool fibers_;
  std::vector<std::unique_ptr<BlockRun>> spare_, live_;
  Grid* grid_ = nullptr;                        // of the chunk; holds a reference
  uint64_t chunk_next_ = 0, chunk_end_ = 0;
  Grid* counted_ = nullptr;                     // whose finished blocks are in uncounted_
  uint64_t uncounted_ = 0;
  bool holds_turn_ = false;
  uint32_t idle_rounds_ = 0;
  uint64_t idle_since_ = 0;                     // nanoseconds; 0: not idle
};

class Pool final : public GridExecutor {
 public:
  Pool(unsigned threads, DeviceTurns* turns);
  ~Pool() override;
  void submit(GridRequest request, std::function<void(GridResult)> done) override;

  // --- For workers ---
  // The first that the worker may run with blocks to claim, referenced; null when there is none.
  Grid* first_grid(unsigned worker);
  bool more_to_claim() const { return queued_.load(std::memory_order_relaxed) > 0; }
  bool more_than_one_queued() const { return queued_.load(std::memory_order_relaxed) > 1; }
  bool wait_for_work(unsigned worker, bool* long_idle);  // false: the pool ends
  void wake_another(const Grid& grid);      // that may help with it, or with another one that is queued
  void block_starts(Grid& grid);
  void finish_blocks(Grid& grid, uint64_t count);
  void abort(Grid& grid, FaultKind kind, uint64_t address, std::string detail);
  void release(Grid* grid);
  void turn_taken();
  void turn_dropped();
  DeviceTurns* turns() const { return turns_; }

 private:
  void complete(Grid& grid);
  void submit_at(uint32_t depth, GridRequest request, std::function<void(GridResult)> done);
  void run_children(uint32_t depth, std::shared_ptr<ChildLaunches> children, const KernelServices* services,
                    std::shared_ptr<const Multiprocessors> where, GridResult result, std::function<void(GridResult)> done);
  void wake(const Multiprocessors* where, int most);  // null: anywhere

  DeviceTurns* const turns_;
  const unsigned thread_count_;
  ParameterMemory parameters_;
  SpinLock mutex_;
  std::deque<Grid*> queue_;                 // grids whose last block is not claimed yet, oldest first
  Grid* unfinished_ = nullptr;              // all grids whose last block has not ended
  std::atomic<uint32_t> unfinished_count_{0};
  std::atomic<uint32_t> submissions_{0};
  uint64_t next_grid_id_ = 1;
  bool stopping_ = false;
  std::atomic<uint32_t> queued_{0};         // size of queue_
  std::atomic<uint32_t> epoch_{0};          // futex: counts submissions
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<bool> spinning_{false};       // one idle worker watches epoch_ without sleeping
  std::atomic<bool> divided_{false};        // some grid may not run everywhere: who is woken matters

  SpinLock turn_mutex_;
  uint32_t turn_holders_ = 0;               // workers that hold the device's turn
  uint64_t dropped_at_ = 0;                 // nanoseconds
  std::atomic<uint64_t> away_{0};           // nanoseconds without the turn, in all

  std::vector<std::thread> threads_;
};

uint64_t nanoseconds_now();  // monotonic

// On a worker that ends a grid and has nothing else to do: the first grid that starts because of that needs no other worker
// to be told.
extern thread_local const Worker* worker_about_to_claim;

}  // namespace gpupool::softgpu
