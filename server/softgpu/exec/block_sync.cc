// Barriers and warp operations of a running block.
#include <bit>
#include <utility>

#include "server/softgpu/exec/block_run.h"

namespace gpupool::softgpu {

// A barrier for all threads does not wait for threads that have ended. A count that covers the whole block
// means the same, unless threads used bar.arrive: those may have ended and still count.
bool BlockRun::complete(const Barrier& barrier) const {
  if (barrier.expected != 0 && barrier.arrived >= barrier.expected) return true;
  const bool all = barrier.expected == 0 || barrier.expected >= threads_;
  return all && barrier.without_waiting == 0 && barrier.arrived >= live_;
}

void BlockRun::release(Barrier& barrier) {
  const uint32_t trues = barrier.true_count;
  const bool all = trues == barrier.predicates;
  while (!barrier.waiting.empty()) {
    ThreadSlot* slot = barrier.waiting.pop();
    switch (static_cast<BarrierReduction>(slot->result)) {
      case BarrierReduction::none: slot->result = 0; break;
      case BarrierReduction::popc: slot->result = trues; break;
      case BarrierReduction::conjunction: slot->result = all; break;
      case BarrierReduction::disjunction: slot->result = trues != 0; break;
    }
    wake(slot);
  }
  barrier = Barrier{};
}

uint32_t BlockRun::barrier(ThreadContext* thread, uint32_t id, uint32_t count, BarrierReduction reduction,
                           uint32_t predicate) {
  if (in_loops_ || id >= kMaxBarriers) end_with_fault(FaultKind::illegal_instruction, 0);
  Barrier& barrier = barriers_[id];
  used_barriers_ |= 1u << id;
  if (barrier.arrived++ == 0) barrier.expected = count;
  if (reduction != BarrierReduction::none) {
    ++barrier.predicates;
    barrier.true_count += predicate != 0;
  }
  auto* slot = reinterpret_cast<ThreadSlot*>(thread);
  slot->result = static_cast<uint32_t>(reduction);
  barrier.waiting.push(slot);
  const uint32_t index = thread->linear_tid / kWarpSize;
  --warps_[index].runnable;
  if (complete(barrier)) release(barrier);
  release_waiting_lanes(warps_[index], index);
  suspend(slot);
  return slot->result;
}

void BlockRun::barrier_arrive(uint32_t id, uint32_t count) {
  if (in_loops_ || id >= kMaxBarriers) end_with_fault(FaultKind::illegal_instruction, 0);
  Barrier& barrier = barriers_[id];
  used_barriers_ |= 1u << id;
  if (barrier.arrived++ == 0) barrier.expected = count;
  ++barrier.without_waiting;
  if (complete(barrier)) release(barrier);
}

void BlockRun::collective(ThreadContext* thread, Warp::Kind kind, uint8_t mode, uint32_t members,
                          WarpCallback function) {
  if (in_loops_) end_with_fault(FaultKind::illegal_instruction, 0);
  const uint32_t index = thread->linear_tid / kWarpSize;
  Warp& warp = warps_[index];
  auto* slot = reinterpret_cast<ThreadSlot*>(thread);
  const uint32_t lanes = warp.arrive(thread->lane, kind, mode, members, function);
  if (lanes != 0) {
    wake_lanes(index, lanes, slot);
    return;
  }
  --warp.runnable;
  release_waiting_lanes(warp, index);
  suspend(slot);
}

uint32_t BlockRun::active_mask(ThreadContext* thread, uintptr_t call_site) {
  const uint32_t lane = thread->lane;
  if (in_loops_) return 1u << lane;
  const uint32_t index = thread->linear_tid / kWarpSize;
  Warp& warp = warps_[index];
  warp.active_mask_waiters |= 1u << lane;
  warp.call_site[lane] = call_site;
  --warp.runnable;
  release_waiting_lanes(warp, index);
  suspend(reinterpret_cast<ThreadSlot*>(thread));
  return warp.result[lane];
}

void BlockRun::converge(ThreadContext* thread, uint32_t point) {
  if (in_loops_) return;
  const uint32_t index = thread->linear_tid / kWarpSize;
  Warp& warp = warps_[index];
  if (warp.runnable == 1 && warp.convergence_waiters == 0) return;  // no other lane could join
  warp.convergence_waiters |= 1u << thread->lane;
  warp.point[thread->lane] = point;
  --warp.runnable;
  release_waiting_lanes(warp, index);
  suspend(reinterpret_cast<ThreadSlot*>(thread));
}

void BlockRun::release_waiting_lanes(Warp& warp, uint32_t index) {
  if (warp.runnable != 0) return;
  if (warp.convergence_waiters != 0) {
    wake_lanes(index, warp.take_converged(), nullptr);
    return;
  }
  if (warp.active_mask_waiters == 0) return;
  const uint32_t waiters = std::exchange(warp.active_mask_waiters, 0);
  for (uint32_t rest = waiters; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
    uint32_t together = 0;
    for (uint32_t others = waiters; others != 0; others &= others - 1) {
      const auto other = static_cast<uint32_t>(std::countr_zero(others));
      together |= static_cast<uint32_t>(warp.call_site[other] == warp.call_site[lane]) << other;
    }
    warp.result[lane] = together;
  }
  wake_lanes(index, waiters, nullptr);
}

}  // namespace gpupool::softgpu
