// Leases that move to make room for a waiting request (defragment.cc), and what such moves have cost. Values,
// owned by Core; its thread.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/core/placer.h"

namespace gpupool::scheduler {

struct Defragmentation {
  struct Step {
    LeaseId lease;
    Node* from;
  };
  std::string tenant;
  pool::Request request;  // without ticket and tenant
  // The waiting request; 0: its client is disconnected, and may come back until `hold_until`.
  Stream stream = 0;
  Time hold_until = 0;
  std::vector<GpuSlot> place;  // grouped by node; reserved for the request while it is the head of the queue
  std::vector<Step> steps;
  Time since = 0;
};

// A part of the budget that was spent at one time.
struct DefragmentationSpent {
  Time at;
  uint32_t moves;
  uint64_t bytes;
};

}  // namespace gpupool::scheduler
