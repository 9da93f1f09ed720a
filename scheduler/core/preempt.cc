// Core: preemption of best-effort leases, which are suspended or ended (policy preempt).
#include <algorithm>

#include "scheduler/core/core.h"
#include "scheduler/core/preemption.h"

namespace gpupool::scheduler {

// Preempts the youngest lease on the node that may be and for which helps() holds. Returns false if there is
// none. What it takes from Allocations::preemptible goes to Allocations::ending.
template <class Helps>
bool Core::preempt_one(const Node& node, Helps helps, const std::string& reason, Time now) {
  Lease* latest = nullptr;
  for (const LeaseId& id : node.leases) {
    Lease& lease = *leases_.find(id);
    if (lease.preemptible() && helps(*lease.part_on(node)) && (!latest || lease.granted > latest->granted))
      latest = &lease;
  }
  if (!latest) return false;
  std::string why = reason;
  if (policy_.preempt_suspends()) {
    const auto obstacle = why_not_suspend(*latest);
    if (!obstacle) {
      Suspension how;
      how.preempted = true;
      how.because = reason;
      begin_suspension(*latest, std::move(how), now);
      return true;
    }
    why += "; the lease could not be suspended: " + *obstacle;
  }
  end(*latest, pool::Ended::PREEMPTED, why, policy_.grace_ms(), now);
  return true;
}

// Preempts leases until the need will fit on the GPU.
void Core::preempt_gpu(const GpuSlot& slot, const Amount& need, const std::string& reason, Time now) {
  const auto has_gpu = [&](const LeasePart& part) {
    return std::any_of(part.shares.begin(), part.shares.end(),
                       [&](const auto& share) { return share.gpu == slot.gpu; });
  };
  const Gpu& gpu = slot.node->gpus[slot.gpu];
  while (wait_for(need, gpu.allocations, true) == preemption &&
         preempt_one(*slot.node, has_gpu, reason, now)) {
  }
}

// Preempts leases until the need will fit on the host.
void Core::preempt_host(Node& node, const HostAmount& need, const std::string& reason, Time now) {
  const auto has_host = [](const LeasePart& part) { return part.host.cpu_milli > 0 || part.host.memory > 0; };
  while (wait_for(need, node.host, true) == preemption && preempt_one(node, has_host, reason, now)) {
  }
}

// Preempts best-effort leases until the reserved GPUs will become free: the youngest lease first, and only
// leases on those GPUs or hosts.
void Core::preempt(const Demand& demand, const WaitingRequest& for_whom, Time now) {
  const std::string reason =
      "tenant '" + for_whom.tenant + "' needs the GPU for a request with a higher priority";
  for (const GpuSlot& slot : std::vector<GpuSlot>(reservation_)) {
    preempt_gpu(slot, demand.of(slot.node->gpus[slot.gpu]), reason, now);
    preempt_host(*slot.node, slot.node->host.reserved, reason, now);
  }
}

}  // namespace gpupool::scheduler
