// The inventory of the placement library: nodes, their free resources, and the nodes on which each group has
// placements. Exact to the GPU thousandth and the byte.
//
// Owns the nodes. The caller owns the placements and passes each one to release() later. Used by Placer
// (read-only) and by its callers (core/library_placer.h, sim/). Not thread-safe. A call that fails changes
// nothing.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/result.h"
#include "scheduler/placement/node_state.h"

namespace gpupool::placement {

class Cluster {
 public:
  Result<NodeId> add(const NodeSpec& spec);
  // Removes the node with its allocations. Releasing a placement later skips its parts on removed nodes.
  Result<void> remove(NodeId node);
  // A drained node keeps its allocations but accepts no new ones.
  Result<void> set_drained(NodeId node, bool drained);

  // Allocates all parts or none. Fails if a node is drained or has too little free.
  Result<void> allocate(const Placement& placement);
  Result<void> release(const Placement& placement);

  bool has(NodeId node) const {
    return node.slot < nodes_.size() && nodes_[node.slot].present &&
           nodes_[node.slot].generation == node.generation;
  }
  std::optional<NodeId> find(const std::string& name) const;
  const NodeSpec& spec(NodeId node) const { return nodes_[node.slot].spec; }
  bool drained(NodeId node) const { return nodes_[node.slot].drained; }
  size_t size() const { return by_name_.size(); }

  // Nodes by slot number, 0 to slots() - 1. Slots of removed nodes are not open and are reused.
  uint32_t slots() const { return static_cast<uint32_t>(states_.size()); }
  const NodeState& state(uint32_t slot) const { return states_[slot]; }
  // The state of the node without any allocation.
  const NodeState& empty_state(uint32_t slot) const { return families_[nodes_[slot].family].empty; }
  NodeId id(uint32_t slot) const { return {slot, nodes_[slot].generation}; }
  Distance distance(uint32_t a, uint32_t b) const;
  uint32_t rack(uint32_t slot) const { return nodes_[slot].rack; }
  uint32_t zone(uint32_t slot) const { return nodes_[slot].zone; }

  // Totals over all present nodes, including drained ones.
  int64_t total_milli() const { return total_milli_; }
  int64_t free_milli() const { return free_milli_; }

  // The slots where a group has placements, with their number; null: none.
  const std::map<uint32_t, uint32_t>* slots_of(const std::string& group) const;

  // Returns the shape of a request's part with `gpus` GPUs on one node. Processors and host memory are
  // divided in proportion to the GPUs.
  Shape shape_of(const Request& request, int gpus) const;
  Shape shape_of(const Request& request) const { return shape_of(request, request.gpus); }
  size_t models() const { return models_.size(); }
  const std::string& model_name(size_t model) const { return models_[model]; }

  // Maxima over all nodes ever added. extremes_version() grows when one of them or the number of models does.
  struct Extremes {
    uint64_t gpu_memory = 0;
    int64_t cpu_milli = 1;
    int gpus = 1;
  };
  // Nodes with equal resources.
  struct Family {
    NodeState empty;
    uint32_t nodes = 0;  // present ones, including drained ones
  };
  const std::vector<Family>& families() const { return families_; }
  const Extremes& extremes() const { return extremes_; }
  uint64_t extremes_version() const { return extremes_version_; }

  // Each change of a node gets the next number. changes_since() returns the slots that changed after
  // `number`, possibly with duplicates, or null if the log no longer goes back that far: then any slot may
  // have changed.
  uint64_t change() const { return change_; }
  std::optional<std::span<const uint32_t>> changes_since(uint64_t number) const;

 private:
  struct Node {
    NodeSpec spec;
    uint32_t generation = 0;
    uint32_t rack = 0, zone = 0, family = 0;
    bool present = false, drained = false;
  };

  void changed(uint32_t slot);
  Result<void> check_free(const Part& part) const;
  void take(const Part& part, bool give_back);
  uint32_t place_number(const std::string& name);

  std::vector<Node> nodes_;
  std::vector<NodeState> states_;
  std::vector<uint32_t> unused_;  // free slots
  std::unordered_map<std::string, uint32_t> by_name_;
  std::unordered_map<std::string, uint32_t> places_;  // numbers of zones and racks
  std::vector<std::string> models_;
  std::unordered_map<std::string, std::map<uint32_t, uint32_t>> groups_;  // group -> slot -> placements
  int64_t total_milli_ = 0, free_milli_ = 0;
  std::vector<Family> families_;
  std::unordered_map<Shape, uint32_t, ShapeHash> family_of_;  // by the node's total resources
  Extremes extremes_;
  uint64_t extremes_version_ = 0;
  uint64_t change_ = 0;
  uint64_t first_change_ = 0;  // log_[0] is change first_change_ + 1
  std::vector<uint32_t> log_;  // changed slots
};

}  // namespace gpupool::placement
