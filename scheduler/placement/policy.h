// Interface of placement policies: the cost of placing a shape on a node. A policy is immutable: equal inputs
// give equal costs, on any thread. Used by Placer and ScoreIndex.
#pragma once
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/placement/cluster.h"
#include "scheduler/placement/workload.h"

namespace gpupool::placement {

constexpr float kImpossible = std::numeric_limits<float>::infinity();

struct Choice {
  float cost = kImpossible;  // the node with the least cost is taken; among equal ones the first
  uint16_t gpu_mask = 0;     // the GPUs to take
};

class Policy {
 public:
  virtual ~Policy() = default;
  // Requires that the shape fits on the node.
  virtual Choice choose(const NodeState& node, const Shape& shape) const = 0;
  // Returns the memory used by the policy's tables.
  virtual size_t bytes() const { return 0; }
};

// The facts about the cluster and the workload that policies are made from.
struct PolicyInput {
  std::vector<Kind> kinds;
  size_t models = 1;
  Cluster::Extremes extremes;
  std::vector<Cluster::Family> families;
};

enum class PolicyKind {
  fragmentation,  // gpupool's own: fragmentation.h
  fgd,            // Fragmentation Gradient Descent, as published (Weng et al., USENIX ATC 2023)
  best_fit,       // the node with the least processors and GPUs left, as in that paper
  dot_product,  // the node whose free processors and GPUs are least like the request (Tetris, SIGCOMM 2014),
                // as in that paper
  gpu_packing,  // GPUs in use first, then nodes in use, as in that paper
  binpack,      // the node with the least GPU left
  spread,       // the node with the most GPU left
  random,
};

const char* name_of(PolicyKind kind);
std::optional<PolicyKind> policy_named(const std::string& name);
std::string policy_names();  // for messages
// For PolicyKind::random, which has no costs, returns the binpack policy; Placer does not use it.
std::unique_ptr<Policy> make_policy(PolicyKind kind, const PolicyInput& input);
// Returns true if the policy's costs depend on the workload.
inline bool depends_on_workload(PolicyKind kind) {
  return kind == PolicyKind::fragmentation || kind == PolicyKind::fgd;
}

// Return the GPUs with the smallest or the largest free share among those that fit; the first of equal ones.
uint16_t fullest_gpus(const NodeState& node, const Shape& shape);
uint16_t emptiest_gpus(const NodeState& node, const Shape& shape);

}  // namespace gpupool::placement
