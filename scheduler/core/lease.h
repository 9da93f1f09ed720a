// A lease as the scheduler's core knows it.
#pragma once
#include <string>
#include <vector>

#include "scheduler/core/node.h"

namespace gpupool::scheduler {

struct LeasePart {
  struct Share {
    uint32_t gpu;  // of the node
    Amount amount;
  };
  Node* node;
  std::vector<Share> shares;
  HostAmount host;
  uint32_t sessions = 0;  // as the node said last
};

struct Lease {
  LeaseId id;
  std::string tenant;
  pool::Request request;
  std::string queue_id;  // as in the queue; empty: granted by an earlier scheduler
  std::vector<LeasePart> parts;  // those that are not gone, in the order of its devices
  uint64_t serial = 1;
  Time granted = 0;
  uint64_t to_device_bytes_per_second = 0;
  uint64_t to_host_bytes_per_second = 0;
  uint32_t sessions = 0;

  Stream holder = 0;
  Time deadline = 0;  // of its next renewal; of its holder's return; of its end
  bool ending = false;
  pool::Ended::Why why = pool::Ended::RELEASED;
  std::string reason;
  Time end_at = 0;
  bool over_told = false;
  bool counted = false;  // among what its tenant has

  bool preemptible() const { return request.priority() == lease::BEST_EFFORT && !ending; }
};

// A lease that has ended, kept to answer `pool-admin why`.
struct OverLease {
  LeaseId id;
  std::string queue_id;
  pool::Ended::Why why;
  std::string reason;
  Time at;
};

}  // namespace gpupool::scheduler
