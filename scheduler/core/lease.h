// A lease in the scheduler's core: its request, its parts on nodes, and its state. Owned by Core; its thread.
#pragma once
#include <string>
#include <vector>

#include "scheduler/core/node.h"

namespace gpupool::scheduler {

struct LeasePart {
  struct Share {
    uint32_t gpu;  // index in Node::gpus
    Amount amount;
  };
  Node* node;
  std::vector<Share> shares;
  HostAmount host;
  uint32_t sessions = 0;  // in the node's last report
};

struct Lease {
  LeaseId id;
  std::string tenant;
  pool::Request request;
  std::string queue_id;  // WaitingRequest::queue_id() of its request; empty: granted by an earlier leader
  std::vector<LeasePart> parts;  // parts still allocated, in the order of the client's CUDA devices
  uint64_t serial = 1;           // of the tokens; incremented by each renewal
  Time granted = 0;
  uint64_t to_device_bytes_per_second = 0;
  uint64_t to_host_bytes_per_second = 0;
  uint32_t sessions = 0;  // maximum number of sessions; 0: unlimited

  Stream holder = 0;  // the client's stream; 0: disconnected
  Time deadline = 0;  // next renewal, or when a disconnected client's hold or the grace expires; 0: none
  bool ending = false;
  pool::Ended::Why why = pool::Ended::RELEASED;
  std::string reason;
  Time end_at = 0;       // end of the grace period
  bool counted = false;  // included in its tenant's usage

  bool preemptible() const { return request.priority() == lease::BEST_EFFORT && !ending; }
};

// A lease that has ended, kept to answer `pool-admin why`.
struct EndedLease {
  LeaseId id;
  std::string queue_id;
  pool::Ended::Why why;
  std::string reason;
  Time at;
};

}  // namespace gpupool::scheduler
