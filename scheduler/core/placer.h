// Interface through which the core asks for GPUs to grant. LibraryPlacer implements it with
// scheduler/placement; tests use a simple first-fit one. The core owns the allocations, the placer only
// proposes. The core's thread; does not fail.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/core/demand.h"
#include "scheduler/core/node.h"

namespace gpupool::scheduler {

// One GPU of a node.
struct GpuSlot {
  Node* node;
  uint32_t gpu;
};
using Nodes = std::map<std::string, Node>;  // by name

class Placer {
 public:
  virtual ~Placer() = default;
  // Call before the next place() after a node's inventory, spare resources or open() changed.
  virtual void changed(Node& node) = 0;
  // Call before a node's inventory is replaced or cleared.
  virtual void removed(Node& node) = 0;
  // Call for each request that is queued, for policies that learn the mix of requests.
  virtual void arrived(const Demand& demand) = 0;
  // Returns as many distinct GPUs as demanded, on open nodes with enough spare resources, grouped by node;
  // null if there are none.
  virtual std::optional<std::vector<GpuSlot>> place(const Demand& demand) = 0;
  // Returns false if there is no policy of this name.
  virtual bool set_policy(const std::string& name) = 0;
};

}  // namespace gpupool::scheduler
