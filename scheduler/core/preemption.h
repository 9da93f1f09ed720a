// When a need will fit on a GPU or a host, for reservations and preemption. Functions of the state that they
// are given; any thread.
#pragma once
#include "scheduler/core/node.h"

namespace gpupool::scheduler {

// The event that must occur before a need fits, in order of increasing cost: nothing, the end of leases that
// are already ending or being suspended, preemption of best-effort leases, the end of other leases. `never`
// if it cannot fit.
enum Wait { none, endings, preemption, leases, never };

template <class T>
Wait wait_for(const T& need, const Allocations<T>& allocations, bool may_preempt) {
  if (allocations.withheld) return never;
  const T left = allocations.free();
  if (need.within(left)) return none;
  if (need.within(left + allocations.ending)) return endings;
  if (may_preempt && need.within(left + allocations.ending + allocations.preemptible)) return preemption;
  return need.within(allocations.total) ? leases : never;
}

}  // namespace gpupool::scheduler
