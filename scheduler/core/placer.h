// Where a request goes: between the core, which owns what is taken, and the placement library, which finds the best place in what is free.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/core/demand.h"
#include "scheduler/core/node.h"

namespace gpupool::scheduler {

// One GPU of a node.
struct Spot {
  Node* node;
  uint32_t gpu;
};
using Nodes = std::map<std::string, Node>;  // by name

class Placer {
 public:
  virtual ~Placer() = default;
  // What a node has, has spare, or whether it is open is another: to be said before the next place().
  virtual void changed(Node& node) = 0;
  // The node is about to go, or its GPUs are others now.
  virtual void removed(Node& node) = 0;
  // Somebody asks for it: policies that learn take note.
  virtual void arrived(const Demand& demand) = 0;
  // As many GPUs as it asks for, all different, of open nodes, in order of their nodes; or none. What they have spare is enough.
  virtual std::optional<std::vector<Spot>> place(const Demand& demand) = 0;
  // False: there is no such policy.
  virtual bool set_policy(const std::string& name) = 0;
};

}  // namespace gpupool::scheduler
