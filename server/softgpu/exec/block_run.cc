#include "server/softgpu/exec/block_run.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "server/softgpu/exec/device_runtime.h"
#include "server/softgpu/memory/address_space.h"

namespace gpupool::softgpu {
namespace {

constexpr uint64_t kWindowGuard = 64 << 10;  // guard on each side of a shared window, in bytes
// Every kFairness-th switch prefers a thread that has not started or has yielded, so that threads that keep
// waking each other cannot starve it.
constexpr uint32_t kFairness = 256;

__attribute__((tls_model("initial-exec"))) thread_local BlockRun* block_here = nullptr;

}  // namespace

BlockRun* running_block() {
  return block_here;
}
void set_running_block(BlockRun* block) {
  block_here = block;
}

BlockRun::BlockRun(FiberPool& fibers, StackContext& pool_stack) : fibers_(fibers), pool_stack_(pool_stack) {}

BlockRun::~BlockRun() {
  if (loop_fiber_ != nullptr) fibers_.return_abandoned(loop_fiber_);
  if (window_ != 0) free_host(window_, window_bytes_ + 2 * kWindowGuard);
}

bool BlockRun::prepare(Grid& grid) {
  context_ = grid.context;
  context_.executor = this;
  threads_ = 0;
  in_loops_ = grid.in_loops;

  // The window ends at its guard page, so that an overrun faults. Swizzled copies need 1024-byte alignment,
  // both of generic and of shared-space addresses.
  const uint64_t alignment = context_.total_shared_bytes < 1024 ? 256 : 1024;
  const uint64_t needed = round_up(context_.total_shared_bytes, alignment);
  if (window_ == 0 || needed > window_bytes_) {
    if (window_ != 0) free_host(window_, window_bytes_ + 2 * kWindowGuard);
    window_bytes_ = std::max<uint64_t>(round_up(needed, page_bytes()), 64 << 10);
    const auto window = allocate_host(window_bytes_ + 2 * kWindowGuard, page_bytes());
    window_ = window.value_or(0);
    if (window_ == 0 || !install_guard(window_, kWindowGuard) ||
        !install_guard(window_ + kWindowGuard + window_bytes_, kWindowGuard)) {
      return false;
    }
  }
  context_.shared_base = window_ + kWindowGuard + window_bytes_ - needed;

  if (in_loops_) {
    if (loop_fiber_ != nullptr && loop_fiber_->size_class < grid.stack_class) {
      fibers_.return_abandoned(loop_fiber_);
      loop_fiber_ = nullptr;
    }
    return true;
  }
  if (slot_capacity_ < grid.threads) {
    slots_ = std::make_unique<ThreadSlot[]>(grid.threads);
    warps_ = std::make_unique<Warp[]>((grid.threads + kWarpSize - 1) / kWarpSize);
    slot_capacity_ = grid.threads;
    slot_dim_[0] = 0;
  }
  threads_ = grid.threads;
  if (!std::equal(slot_dim_, slot_dim_ + 3, context_.block_dim)) {
    std::copy_n(context_.block_dim, 3, slot_dim_);
    for (uint32_t i = 0; i < threads_; ++i) {
      auto& thread = slots_[i].context;
      thread.tid[0] = i % slot_dim_[0];
      thread.tid[1] = i / slot_dim_[0] % slot_dim_[1];
      thread.tid[2] = i / slot_dim_[0] / slot_dim_[1];
      thread.lane = i % kWarpSize;
      thread.warp = i / kWarpSize;
      thread.linear_tid = i;
      thread.block = &context_;
      slots_[i].fiber = nullptr;
      slots_[i].cluster_ticket = 0;
    }
  }
  return true;
}

// Blocks of a cluster have consecutive numbers.
void BlockRun::place_in_grid(uint64_t index) {
  const uint32_t *grid = context_.grid_dim, *cluster = context_.cluster_dim;
  if (!context_.has_cluster) {
    context_.block_idx[0] = static_cast<uint32_t>(index % grid[0]);
    const uint64_t rest = index / grid[0];
    context_.block_idx[1] = static_cast<uint32_t>(rest % grid[1]);
    context_.block_idx[2] = static_cast<uint32_t>(rest / grid[1]);
    return;
  }
  const uint32_t size = cluster[0] * cluster[1] * cluster[2];
  uint64_t of_grid = index / size;
  uint32_t of_cluster = static_cast<uint32_t>(index % size);
  context_.cluster_rank = of_cluster;
  for (int d = 0; d < 3; ++d) {
    const uint32_t clusters = grid[d] / cluster[d];
    context_.cluster_idx[d] = of_cluster % cluster[d];
    context_.block_idx[d] = static_cast<uint32_t>(of_grid % clusters) * cluster[d] + context_.cluster_idx[d];
    of_grid /= clusters;
    of_cluster /= cluster[d];
  }
}

bool BlockRun::begin(Grid& grid, uint64_t index, std::shared_ptr<Cluster> cluster) {
  fault_ = FaultKind::none;
  fault_text_.clear();
  assertion_failed_ = false;
  first_unrun_thread_ = 0;
  current_ = nullptr;
  grid_ = &grid;
  if (grid_id_ != grid.context.grid_id) {
    grid_id_ = 0;
    if (!prepare(grid)) return false;
    grid_id_ = grid.context.grid_id;
  }
  place_in_grid(index);
  cluster_ = std::move(cluster);
  if (cluster_) {
    cluster_->join(context_.cluster_rank, this, context_.shared_base, context_.total_shared_bytes,
                   in_loops_ ? 0 : threads_);
  }
  progress_ = true;
  if (in_loops_) {
    scratch_ = ThreadContext{};
    scratch_.block = &context_;
    if (loop_fiber_ == nullptr) loop_fiber_ = fibers_.acquire(grid.stack_class, loop_main);
    return loop_fiber_ != nullptr;
  }
  live_ = threads_;
  next_unstarted_ = 0;
  picks_ = idle_picks_ = yielded_count_ = 0;
  ready_.clear();
  yielded_.clear();
  cluster_waiting_.clear();
  for (; used_barriers_ != 0; used_barriers_ &= used_barriers_ - 1) {
    barriers_[std::countr_zero(used_barriers_)] = Barrier{};
  }
  for (uint32_t i = 0; i * kWarpSize < threads_; ++i)
    warps_[i].reset(std::min(kWarpSize, threads_ - i * kWarpSize));
  return true;
}

SliceEnd BlockRun::run() {
  end_ = SliceEnd::running;
  set_running_block(this);
  if (in_loops_) {
    if (grid_->aborted.load(std::memory_order_relaxed)) {
      end_ = SliceEnd::aborted;
    } else {
      run_loops();
    }
  } else if (ThreadSlot* next = pick(); next != nullptr) {
    StackContext& stack = stack_of(next);
    if (&stack != &pool_stack_) switch_stacks(pool_stack_, stack);
  }
  set_running_block(nullptr);
  fibers_.reclaim();
  return end_;
}

bool BlockRun::take_progress() {
  return std::exchange(progress_, false);
}

void BlockRun::abandon() {
  if (in_loops_) {
    if (loop_fiber_ != nullptr) fibers_.return_abandoned(loop_fiber_);
    loop_fiber_ = nullptr;
    return;
  }
  for (uint32_t i = 0; i < threads_; ++i) {
    if (slots_[i].fiber != nullptr) fibers_.return_abandoned(slots_[i].fiber);
    slots_[i].fiber = nullptr;
    slots_[i].cluster_ticket = 0;
  }
}

SOFTGPU_LEAVES_STACK void BlockRun::thread_main() {
  arrived_on_new_stack();
  BlockRun* block = running_block();
  ThreadSlot* slot = block->current_;
  do {
    block->grid_->request.code.thread_entry(&slot->context);
    slot = block->end_thread(slot);
  } while (slot != nullptr);
  __builtin_unreachable();
}

SOFTGPU_LEAVES_STACK void BlockRun::loop_main() {
  arrived_on_new_stack();
  for (;;) {
    BlockRun* block = running_block();
    block->grid_->request.code.loop_entry(&block->context_, &block->scratch_);
    block->end_ = SliceEnd::finished;
    switch_stacks(*block->loop_fiber_, block->pool_stack_);
  }
}

// Chooses the next thread: first a thread that is ready, then one that has not started (late, to keep few
// stacks in use), then one that spins. Returns null to switch to the pool thread; end_ then holds the reason.
ThreadSlot* BlockRun::pick() {
  if (grid_->aborted.load(std::memory_order_relaxed)) {
    end_ = SliceEnd::aborted;
    return nullptr;
  }
  const bool others_first = ++picks_ % kFairness == 0;
  if (!ready_.empty() && !(others_first && (next_unstarted_ < threads_ || !yielded_.empty()))) {
    progress_ = true;
    idle_picks_ = 0;
    return ready_.pop();
  }
  if (next_unstarted_ < threads_) {
    progress_ = true;
    idle_picks_ = 0;
    return &slots_[next_unstarted_++];
  }
  if (!yielded_.empty()) {
    if (ready_.empty() && ++idle_picks_ > 2 * yielded_count_ + 4) {
      idle_picks_ = 0;
      end_ = SliceEnd::idle;
      if (assertion_failed_) set_fault(FaultKind::assertion, 0);
      return nullptr;
    }
    ThreadSlot* slot = yielded_.pop();
    --yielded_count_;
    Warp& warp = warp_of(&slot->context);
    const uint32_t lane = 1u << slot->context.lane;
    if ((warp.spinning & lane) != 0) ++warp.runnable;
    warp.spinning &= ~lane;
    return slot;
  }
  if (assertion_failed_) {
    set_fault(FaultKind::assertion, 0);
  } else if (live_ == 0) {
    end_ = SliceEnd::finished;
  } else if (!cluster_waiting_.empty() && !cluster_->stuck()) {
    end_ = SliceEnd::idle;
  } else {
    set_fault(FaultKind::deadlock, 0);
  }
  return nullptr;
}

StackContext& BlockRun::stack_of(ThreadSlot* next) {
  if (next == nullptr) return pool_stack_;
  if (next->fiber == nullptr) {
    next->fiber = fibers_.acquire(grid_->stack_class, thread_main);
    if (next->fiber == nullptr) {
      set_fault(FaultKind::hardware_stack, 0);
      set_fault_text("out of host memory for thread stacks");
      return pool_stack_;
    }
  }
  current_ = next;
  return *next->fiber;
}

void BlockRun::suspend(ThreadSlot* me) {
  ThreadSlot* next = pick();
  if (next == me) return;
  Fiber* mine = me->fiber;
  switch_stacks(*mine, stack_of(next));
}

// Called when the thread has ended and its stack is empty: returns the next thread to start on the same
// stack, or leaves the stack for good.
SOFTGPU_LEAVES_STACK ThreadSlot* BlockRun::end_thread(ThreadSlot* slot) {
  Fiber* fiber = std::exchange(slot->fiber, nullptr);
  retire_thread(slot);
  ThreadSlot* next = pick();
  if (next != nullptr && next->fiber == nullptr) {
    next->fiber = fiber;
    current_ = next;
    return next;
  }
  fibers_.release(fiber);
  leave_stack(*fiber, stack_of(next));
}

void BlockRun::exit_thread(ThreadContext* thread) {
  if (in_loops_) end_with_fault(FaultKind::illegal_instruction, 0);
  ThreadSlot* slot = current_;
  Fiber* fiber = std::exchange(slot->fiber, nullptr);
  retire_thread(slot);
  ThreadSlot* next = pick();
  if constexpr (kSanitized) {
    fibers_.retire(fiber);
  } else {
    if (next != nullptr && next->fiber == nullptr) {
      next->fiber = fiber;
      current_ = next;
      softgpu_context_restore(make_context(fiber->bottom + fiber->bytes, thread_main));
    }
    fibers_.release(fiber);
  }
  leave_stack(*fiber, stack_of(next));
}

void BlockRun::retire_thread(ThreadSlot* slot) {
  --live_;
  progress_ = true;
  const uint32_t index = slot->context.linear_tid / kWarpSize;
  Warp& warp = warps_[index];
  warp.ended |= 1u << slot->context.lane;
  while (const uint32_t lanes = warp.group_count != 0 ? warp.complete_one() : 0)
    wake_lanes(index, lanes, nullptr);
  --warp.runnable;
  release_waiting_lanes(warp, index);
  if (cluster_) {
    cluster_->thread_ends(has_arrived(*slot));
    slot->cluster_ticket = 0;
  }
  for (uint32_t used = used_barriers_; used != 0; used &= used - 1) {
    Barrier& barrier = barriers_[std::countr_zero(used)];
    if (barrier.arrived != 0 && complete(barrier)) release(barrier);
  }
}

void BlockRun::wake(ThreadSlot* slot) {
  ++warp_of(&slot->context).runnable;
  ready_.push(slot);
}

void BlockRun::wake_lanes(uint32_t warp, uint32_t lanes, const ThreadSlot* except) {
  for (; lanes != 0; lanes &= lanes - 1) {
    ThreadSlot* slot = &slots_[warp * kWarpSize + static_cast<uint32_t>(std::countr_zero(lanes))];
    if (slot != except) wake(slot);
  }
}

void BlockRun::yield(ThreadContext* thread) {
  if (in_loops_) {
    if (++loop_yields_ % 16 != 0) return;
    end_ = grid_->aborted.load(std::memory_order_relaxed) ? SliceEnd::aborted : SliceEnd::idle;
    if (assertion_failed_) set_fault(FaultKind::assertion, 0);
    switch_stacks(*loop_fiber_, pool_stack_);
    return;
  }
  auto* slot = reinterpret_cast<ThreadSlot*>(thread);
  yielded_.push(slot);
  ++yielded_count_;
  const uint32_t index = thread->linear_tid / kWarpSize;
  Warp& warp = warps_[index];
  const uint32_t lane = 1u << thread->lane;
  if ((warp.resumed & lane) != 0) {
    // The lane may be on its way to the next convergence point in this loop, so the other lanes wait for it
    // once more.
    warp.resumed &= ~lane;
    warp.yielded = true;
  } else {
    warp.spinning |= lane;
    --warp.runnable;
    release_waiting_lanes(warp, index);
  }
  suspend(slot);
}

char* BlockRun::text_buffer() {
  if (!text_) text_ = std::make_unique_for_overwrite<char[]>(kTextBytes);
  return text_.get();
}

DeviceRuntime device_runtime_of(const ThreadContext* thread) {
  const Grid& grid = BlockRun::of(thread).grid();
  return {grid.children.get(), grid.request.services};
}

}  // namespace gpupool::softgpu
