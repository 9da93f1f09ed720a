// Execution of one block on one pool thread: its CUDA threads run in plain loops on one stack, or each on a
// fiber.
//
// Owns the shared-memory window and the state of threads, warps and barriers; a Worker reuses it for one
// block after another. run() is called on the pool thread's own stack and returns when the block has
// finished, has faulted, or can do nothing but spin. Fibers switch to each other directly. No object on a
// fiber's stack may own a resource across a switch: fibers are abandoned without unwinding when a grid
// faults. Used by its pool thread alone.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "server/softgpu/exec/abi.h"
#include "server/softgpu/exec/cluster.h"
#include "server/softgpu/exec/fiber.h"
#include "server/softgpu/exec/grid_state.h"
#include "server/softgpu/exec/warp.h"

namespace gpupool::softgpu {

struct ThreadSlot {
  ThreadContext context;  // must be first: the functions of abi.h receive its address
  Fiber* fiber;           // null: not started yet, or ended
  ThreadSlot* next;       // link in the ThreadList that contains the slot
  uint32_t result;  // while waiting at a barrier: its BarrierReduction; afterwards the reduction's result
  uint32_t cluster_ticket;  // cluster phase + 1 of its arrival; 0: not arrived, or has waited since
};

class ThreadList {
 public:
  bool empty() const { return head_ == nullptr; }
  void clear() { head_ = nullptr; }
  void push(ThreadSlot* slot) {
    slot->next = nullptr;
    if (head_ == nullptr) {
      head_ = slot;
    } else {
      tail_->next = slot;
    }
    tail_ = slot;
  }
  ThreadSlot* pop() {
    ThreadSlot* slot = head_;
    head_ = slot->next;
    return slot;
  }

 private:
  ThreadSlot* head_ = nullptr;
  ThreadSlot* tail_ = nullptr;
};

struct Barrier {
  uint32_t arrived = 0;
  uint32_t without_waiting = 0;  // of `arrived`: threads that used bar.arrive
  uint32_t expected = 0;         // 0: all threads that have not ended
  uint32_t true_count = 0;       // reduction: threads that arrived with a true predicate
  uint32_t predicates = 0;       // reduction: threads that arrived with any predicate
  ThreadList waiting;
};

enum class SliceEnd { running, finished, idle, faulted, aborted };

class BlockRun {
 public:
  BlockRun(FiberPool& fibers, StackContext& pool_stack);
  ~BlockRun();
  BlockRun(const BlockRun&) = delete;
  BlockRun& operator=(const BlockRun&) = delete;

  // Prepares block number `index` of the grid. `cluster` is the block's cluster, or null. Returns false if
  // the host has no memory for the block's shared window or threads.
  bool begin(Grid& grid, uint64_t index, std::shared_ptr<Cluster> cluster = nullptr);
  void leave_cluster();  // called once the block has ended, for whatever reason
  // Runs on the pool thread's own stack. Returns SliceEnd::idle if every runnable thread only spins.
  SliceEnd run();
  // Returns true if a thread has done more than spin since the last call.
  bool take_progress();
  // Gives all fibers back to the pool; for blocks that faulted or were aborted.
  void abandon();

  Grid& grid() const { return *grid_; }
  StackContext& pool_stack() const { return pool_stack_; }
  FaultKind fault() const { return fault_; }
  uint64_t fault_address() const { return fault_address_; }
  std::string describe_fault() const;  // one line
  void set_fault(FaultKind kind, uint64_t address) {
    fault_ = kind;
    fault_address_ = address;
    end_ = SliceEnd::faulted;
  }
  void set_fault_text(std::string text) { fault_text_ = std::move(text); }
  bool assertion_failed() const { return assertion_failed_; }
  // Buffer for text that a thread builds without switching; a fiber's stack is too small for it.
  static constexpr uint32_t kTextBytes = 64 << 10;
  char* text_buffer();

  // --- On a fiber ---
  static BlockRun& of(const ThreadContext* thread) {
    return *static_cast<BlockRun*>(thread->block->executor);
  }
  bool in_loops() const { return in_loops_; }
  Fiber& running_fiber() const { return in_loops_ ? *loop_fiber_ : *current_->fiber; }
  const ThreadContext& running_thread() const { return in_loops_ ? scratch_ : current_->context; }
  Warp& warp_of(const ThreadContext* thread) { return warps_[thread->linear_tid / kWarpSize]; }
  [[noreturn]] void end_with_fault(FaultKind kind, uint64_t address);
  [[noreturn]] void exit_thread(ThreadContext* thread);
  // Stops the thread. The block faults once its other threads have ended, failed as well, or wait, so that
  // every failing thread has reported its assertion.
  [[noreturn]] void fail_assertion(ThreadContext* thread);
  void yield(ThreadContext* thread);
  uint32_t barrier(ThreadContext* thread, uint32_t id, uint32_t count, BarrierReduction reduction,
                   uint32_t predicate);
  void barrier_arrive(uint32_t id, uint32_t count);
  // Joins a collective operation of the warp; returns when its results are available.
  void collective(ThreadContext* thread, Warp::Kind kind, uint8_t mode, uint32_t members,
                  WarpCallback function = nullptr);
  uint32_t active_mask(ThreadContext* thread, uintptr_t call_site);
  void converge(ThreadContext* thread, uint32_t point);
  void cluster_arrive(ThreadContext* thread);
  void cluster_wait(ThreadContext* thread);
  uint64_t cluster_window(uint32_t rank);  // 0: no such block
  uint32_t cluster_rank_of(uint64_t address);

  // --- Called by Cluster ---
  void wake_cluster_waiters();
  bool can_go_on() const;

 private:
  static void thread_main();
  static void loop_main();
  static void rest_of_loop_main();
  void run_loops();
  ThreadSlot* pick();
  StackContext& stack_of(ThreadSlot* next);
  void suspend(ThreadSlot* me);
  ThreadSlot* end_thread(ThreadSlot* slot);
  void retire_thread(ThreadSlot* slot);
  void wake(ThreadSlot* slot);
  void wake_lanes(uint32_t warp, uint32_t lanes, const ThreadSlot* except);
  // If no lane of the warp can proceed by itself: releases lanes in softgpu_converge or, if there are none,
  // gives the lanes in softgpu_active_mask their masks and releases them.
  void release_waiting_lanes(Warp& warp, uint32_t index);
  bool complete(const Barrier& barrier) const;
  void release(Barrier& barrier);
  bool prepare(Grid& grid);
  Cluster& cluster();
  bool has_arrived(const ThreadSlot& slot) const {
    return slot.cluster_ticket != 0 && cluster_ && slot.cluster_ticket == cluster_->phase() + 1;
  }
  void place_in_grid(uint64_t index);

  FiberPool& fibers_;
  StackContext& pool_stack_;

  BlockContext context_{};
  Grid* grid_ = nullptr;
  uint64_t grid_id_ = 0;  // detects a new grid at the address of a deleted one
  bool in_loops_ = false;
  SliceEnd end_ = SliceEnd::running;
  bool progress_ = false;
  uint32_t threads_ = 0, live_ = 0, next_unstarted_ = 0;
  uint32_t picks_ = 0, idle_picks_ = 0, yielded_count_ = 0;
  uint32_t used_barriers_ = 0;  // bit mask of barriers_ used since begin()
  ThreadSlot* current_ = nullptr;
  ThreadList ready_, yielded_, cluster_waiting_;
  std::shared_ptr<Cluster> cluster_;
  Barrier barriers_[kMaxBarriers];
  std::unique_ptr<ThreadSlot[]> slots_;
  std::unique_ptr<Warp[]> warps_;
  uint32_t slot_capacity_ = 0;
  uint32_t slot_dim_[3] = {0, 0, 0};  // block_dim that the slots' indices were computed for

  Fiber* loop_fiber_ = nullptr;
  ThreadContext scratch_{};
  uint32_t loop_yields_ = 0;
  bool assertion_failed_ = false;
  uint32_t first_unrun_thread_ = 0;  // after a failed assertion; 0: none

  uint64_t window_ = 0, window_bytes_ = 0;
  FaultKind fault_ = FaultKind::none;
  uint64_t fault_address_ = 0;
  std::string fault_text_;
  std::unique_ptr<char[]> text_;
};

// The block that the calling pool thread is running; null on other threads and between blocks.
BlockRun* running_block();
void set_running_block(BlockRun* block);

}  // namespace gpupool::softgpu
