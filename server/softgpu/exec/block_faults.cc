// The abnormal ends of a running block: faults and failed assertions, and the text that describes them.
#include <cstdio>
#include <utility>

#include "server/softgpu/exec/block_run.h"

namespace gpupool::softgpu {

void BlockRun::end_with_fault(FaultKind kind, uint64_t address) {
  set_fault(kind, address);
  leave_stack(running_fiber(), pool_stack_);
}

void BlockRun::fail_assertion(ThreadContext* thread) {
  assertion_failed_ = true;
  if (in_loops_) {
    first_unrun_thread_ = thread->linear_tid + 1;
    leave_stack(running_fiber(), pool_stack_);
  }
  const uint32_t index = thread->linear_tid / kWarpSize;
  --warps_[index].runnable;
  release_waiting_lanes(warps_[index], index);
  for (;;) suspend(reinterpret_cast<ThreadSlot*>(thread));  // never resumed
}

// Each thread that fails an assertion abandons the loop's stack, so the remaining threads run one by one on a
// new one.
void BlockRun::run_loops() {
  switch_stacks(pool_stack_, *loop_fiber_);
  while (const uint32_t next = std::exchange(first_unrun_thread_, 0)) {
    fibers_.return_abandoned(loop_fiber_);
    loop_fiber_ = fibers_.acquire(grid_->stack_class, rest_of_loop_main);
    if (loop_fiber_ == nullptr) return set_fault(FaultKind::assertion, 0);
    scratch_.linear_tid = next;
    switch_stacks(pool_stack_, *loop_fiber_);
  }
}

SOFTGPU_LEAVES_STACK void BlockRun::rest_of_loop_main() {
  arrived_on_new_stack();
  BlockRun* block = running_block();
  const uint32_t* dim = block->context_.block_dim;
  ThreadContext& thread = block->scratch_;
  for (uint32_t linear = thread.linear_tid; linear < dim[0] * dim[1] * dim[2]; ++linear) {
    thread.tid[0] = linear % dim[0];
    thread.tid[1] = linear / dim[0] % dim[1];
    thread.tid[2] = linear / dim[0] / dim[1];
    thread.lane = linear % kWarpSize;
    thread.warp = linear / kWarpSize;
    thread.linear_tid = linear;
    thread.block = &block->context_;
    block->grid_->request.code.thread_entry(&thread);
  }
  block->set_fault(FaultKind::assertion, 0);
  leave_stack(*block->loop_fiber_, block->pool_stack_);
}

std::string BlockRun::describe_fault() const {
  if (fault_ == FaultKind::assertion) return fault_text_;
  static constexpr const char* kNames[] = {"no fault",
                                           "illegal address",
                                           "misaligned address",
                                           "address in the wrong state space",
                                           "illegal instruction",
                                           "call through an invalid function pointer",
                                           "stack overflow",
                                           "trap",
                                           "assertion",
                                           "deadlock",
                                           "cancelled"};
  const ThreadContext& thread = in_loops_ || current_ == nullptr ? scratch_ : current_->context;
  char place[192];
  std::snprintf(place, sizeof place, ", block (%u,%u,%u), thread (%u,%u,%u): %s", context_.block_idx[0],
                context_.block_idx[1], context_.block_idx[2], thread.tid[0], thread.tid[1], thread.tid[2],
                kNames[static_cast<uint32_t>(fault_)]);
  std::string line = "kernel " + std::string(grid_->request.kernel_name) + place;
  switch (fault_) {
    case FaultKind::illegal_address:
    case FaultKind::misaligned_address:
    case FaultKind::invalid_address_space:
    case FaultKind::invalid_pc:
    case FaultKind::hardware_stack:
      std::snprintf(place, sizeof place, " 0x%llx", static_cast<unsigned long long>(fault_address_));
      line += place;
      break;
    case FaultKind::deadlock:
      line += ": all remaining threads wait at barriers or warp operations that cannot complete";
      break;
    default: break;
  }
  if (!fault_text_.empty()) line += ": " + fault_text_;
  return line;
}

}  // namespace gpupool::softgpu
