// The inventory: nodes, what is free on them, and which group has what where. Exact to the thousandth and the byte.
//
// Owns the nodes, not the placements: whoever asked for one keeps it and gives it back. Not thread-safe. Failures are Results and
// change nothing.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "protocol/wire/result.h"
#include "scheduler/placement/node_state.h"

namespace gpupool::placement {

class Cluster {
 public:
  Result<NodeId> add(const NodeSpec& spec);
  // What was placed there is gone with it; releasing it later is allowed and does nothing for that node.
  Result<void> remove(NodeId node);
  // A drained node keeps what it has and gets nothing new.
  Result<void> set_drained(NodeId node, bool drained);

  // All of it or nothing. A drained node is refused, too.
  Result<void> allocate(const Placement& placement);
  Result<void> release(const Placement& placement);

  bool has(NodeId node) const { return node.slot < nodes_.size() && nodes_[node.slot].present && nodes_[node.slot].generation == node.generation; }
  std::optional<NodeId> find(const std::string& name) const;
  const NodeSpec& spec(NodeId node) const { return nodes_[node.slot].spec; }
  bool drained(NodeId node) const { return nodes_[node.slot].drained; }
  size_t size() const { return by_name_.size(); }

  // Slots: nodes by number, 0..slots()-1; those of removed nodes are not open.
  uint32_t slots() const { return static_cast<uint32_t>(states_.size()); }
  const NodeState& state(uint32_t slot) const { return states_[slot]; }
  // The state that it would have with nothing on it.
  const NodeState& empty_state(uint32_t slot) const { return families_[nodes_[slot].family].empty; }
  NodeId id(uint32_t slot) const { return {slot, nodes_[slot].generation}; }
  Distance distance(uint32_t a, uint32_t b) const;
  uint32_t rack(uint32_t slot) const { return nodes_[slot].rack; }
  uint32_t zone(uint32_t slot) const { return nodes_[slot].zone; }

  // Totals over all nodes that are there, drained or not.
  int64_t total_milli() const { return total_milli_; }
  int64_t free_milli() const { return free_milli_; }

  // The nodes where a group has something.
  const std::map<uint32_t, uint32_t>* slots_of(const std::string& group) const;

  // A request as nodes see it. `gpus`: of one node; the processors and memory of the others are theirs.
  Shape shape_of(const Request& request, int gpus) const;
  Shape shape_of(const Request& request) const { return shape_of(request, request.gpus); }
  size_t models() const { return models_.size(); }
  const std::string& model_name(size_t model) const { return models_[model]; }

  // The largest of any node there ever was, and a number that grows when one of them or the number of models does.
  struct Extremes {
    uint64_t gpu_memory = 0;
    int64_t cpu_milli = 1;
    int gpus = 1;
  };
  // Nodes that are alike when nothing is placed on them.
  struct Family {
    NodeState empty;
    uint32_t nodes = 0;  // that are there, drained or not
  };
  const std::vector<Family>& families() const { return families_; }
  const Extremes& extremes() const { return extremes_; }
  uint64_t extremes_version() const { return extremes_version_; }

  // Every change of a node has a number. changes_since() gives the slots that changed after `number` (some more than once), or nothing if
  // that is longer ago than is remembered: then any may have.
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
  std::vector<uint32_t> unused_;                                  // slots
  std::unordered_map<std::string, uint32_t> by_name_;
  std::unordered_map<std::string, uint32_t> places_;              // zones and racks
  std::vector<std::string> models_;
  std::unordered_map<std::string, std::map<uint32_t, uint32_t>> groups_;  // group, slot: placements there
  int64_t total_milli_ = 0, free_milli_ = 0;
  std::vector<Family> families_;
  std::unordered_map<Shape, uint32_t, ShapeHash> family_of_;       // what it has, written as if it were asked for
  Extremes extremes_;
  uint64_t extremes_version_ = 0;
  uint64_t change_ = 0;
  uint64_t first_change_ = 0;                                     // that log_[0] follows
  std::vector<uint32_t> log_;
};

}  // namespace gpupool::placement
