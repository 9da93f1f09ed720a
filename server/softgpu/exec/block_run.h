// The execution of one block on one pool thread: its CUDA threads in plain loops on one stack, or each on a fiber.
//
// Owns the shared-memory window and the state of threads, warps and barriers, and is reused for one block after the other.
// run() is called on the pool thread's own stack and returns when the block has ended, has faulted, or can do nothing but
// spin. Fibers switch to each other directly. Nothing on a fiber's stack may own anything while it can switch: fibers are
// abandoned without unwinding when a grid faults.
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
  ThreadContext context;  // first: the functions of abi.h get its address
  Fiber* fiber;           // null: not started, or ended
  ThreadSlot* next;       // in the list it is in
  uint32_t result;        // at a barrier: its BarrierReduction while it waits, then the result
  uint32_t cluster_ticket;  // arrived at the cluster's barrier in this phase, less one; 0: not, or has waited since
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
  uint32_t without_waiting = 0;  // of those, by bar.arrive
  uint32_t expected = 0;         // 0: all threads that have not ended
  uint32_t true_count = 0;       // reduction: arrived with a true predicate
  uint32_t predicates = 0;       // reduction: arrived with any
  ThreadList waiting;
};

enum class SliceEnd { running, finished, idle, faulted, aborted };

class BlockRun {
 public:
  BlockRun(FiberPool& fibers, StackContext& pool_stack);
  ~BlockRun();
  BlockRun(const BlockRun&) = delete;
  BlockRun& operator=(const BlockRun&) = delete;

  // False: the host has no memory left for the block's shared window or threads.
  // `cluster`: the one whose block it is; null without clusters.
  bool begin(Grid& grid, uint64_t index, std::shared_ptr<Cluster> cluster = nullptr);
  void leave_cluster();  // when it is over, however
  // On the pool thread's own stack. idle: every thread that could run only spins.
  SliceEnd run();
  // True when something other than spinning happened since the last call.
  bool take_progress();
  // After faulted or aborted: gives up every fiber.
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
  // A buffer for text that a thread builds without switching; fibers have no stack for it.
  static constexpr uint32_t kTextBytes = 64 << 10;
  char* text_buffer();

  // --- On a fiber ---
  static BlockRun& of(const ThreadContext* thread) { return *static_cast<BlockRun*>(thread->block->executor); }
  bool in_loops() const { return in_loops_; }
  Fiber& running_fiber() const { return in_loops_ ? *loop_fiber_ : *current_->fiber; }
  const ThreadContext& running_thread() const { return in_loops_ ? scratch_ : current_->context; }
  Warp& warp_of(const ThreadContext* thread) { return warps_[thread->linear_tid / kWarpSize]; }
  [[noreturn]] void end_with_fault(FaultKind kind, uint64_t address);
  [[noreturn]] void exit_thread(ThreadContext* thread);
  // Stops the thread. The block goes on until its other threads have ended, failed, too, or wait, and faults then, so that
  // each thread that fails has said so.
  [[noreturn]] void fail_assertion(ThreadContext* thread);
  void yield(ThreadContext* thread);
  uint32_t barrier(ThreadContext* thread, uint32_t id, uint32_t count, BarrierReduction reduction, uint32_t predicate);
  void barrier_arrive(uint32_t id, uint32_t count);
  // Arrives at a collective operation of the warp and returns when its results are there.
  void collective(ThreadContext* thread, Warp::Kind kind, uint8_t mode, uint32_t members,
                  WarpFunction function = nullptr);
  uint32_t active_mask(ThreadContext* thread, uintptr_t call_site);
  void converge(ThreadContext* thread, uint32_t point);
  void cluster_arrive(ThreadContext* thread);
  void cluster_wait(ThreadContext* thread);
  uint64_t cluster_window(uint32_t rank);  // 0: there is no such block
  uint32_t cluster_rank_of(uint64_t address);

  // --- For the cluster ---
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
  // When no lane of the warp can go on by itself: releases lanes in softgpu_converge; when there are none, the lanes in
  // softgpu_active_mask learn who waits with them.
  void settle(Warp& warp, uint32_t index);
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
  uint64_t grid_id_ = 0;          // tells a new grid at an old one's address
  bool in_loops_ = false;
  SliceEnd end_ = SliceEnd::running;
  bool progress_ = false;
  uint32_t threads_ = 0, live_ = 0, next_unstarted_ = 0;
  uint32_t picks_ = 0, idle_picks_ = 0, yielded_count_ = 0;
  uint32_t used_barriers_ = 0;    // one bit each
  ThreadSlot* current_ = nullptr;
  ThreadList ready_, yielded_, cluster_waiting_;
  std::shared_ptr<Cluster> cluster_;
  Barrier barriers_[kMaxBarriers];
  std::unique_ptr<ThreadSlot[]> slots_;
  std::unique_ptr<Warp[]> warps_;
  uint32_t slot_capacity_ = 0;
  uint32_t slot_dim_[3] = {0, 0, 0};  // block_dim for which the slots' indices are set

  Fiber* loop_fiber_ = nullptr;
  ThreadContext scratch_{};
  uint32_t loop_yields_ = 0;
  bool assertion_failed_ = false;
  uint32_t rest_of_loop_ = 0;     // the first thread that has not run, when an assertion left the loops; 0: none did

  uint64_t window_ = 0, window_bytes_ = 0;
  FaultKind fault_ = FaultKind::none;
  uint64_t fault_address_ = 0;
  std::string fault_text_;
  std::unique_ptr<char[]> text_;
};

// The block that this pool thread runs now; null elsewhere.
BlockRun* running_block();
void set_running_block(BlockRun* block);

}  // namespace gpupool::softgpu
