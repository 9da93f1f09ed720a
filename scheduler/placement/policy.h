// How good a node is for a shape. A policy is a value: the same state, shape and workload give the same cost on any thread.
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
  float cost = kImpossible;   // the least is taken; of equal ones the first node
  uint16_t gpu_mask = 0;
};

class Policy {
 public:
  virtual ~Policy() = default;
  // For a node that the shape fits on.
  virtual Choice choose(const NodeState& node, const Shape& shape) const = 0;
  // Of memory that its tables take.
  virtual size_t bytes() const { return 0; }
};

// What a policy may know about the pool.
struct Surroundings {
  std::vector<Kind> kinds;
  size_t models = 1;
  Cluster::Extremes extremes;
  std::vector<Cluster::Family> families;
};

enum class PolicyKind {
  fragmentation,   // gpupool's own: fragmentation.h
  fgd,             // Fragmentation Gradient Descent, as published (Weng et al., USENIX ATC 2023)
  best_fit,        // the node with the least processors and GPUs left, as in that paper
  dot_product,     // the node whose free processors and GPUs are least like the request (Tetris, SIGCOMM 2014), as in that paper
  gpu_packing,     // GPUs in use first, then nodes in use, as in that paper
  binpack,         // the node with the least GPU left
  spread,          // the node with the most GPU left
  random,
};

const char* name_of(PolicyKind kind);
std::optional<PolicyKind> policy_named(const std::string& name);
std::string policy_names();  // for messages
// Not for random, which has no costs.
std::unique_ptr<Policy> make_policy(PolicyKind kind, const Surroundings& surroundings);
// Whether costs depend on the workload.
inline bool learns(PolicyKind kind) { return kind == PolicyKind::fragmentation || kind == PolicyKind::fgd; }

// The GPUs with the least, or the most, free share among those that fit; the first of equal ones.
uint16_t fullest_gpus(const NodeState& node, const Shape& shape);
uint16_t emptiest_gpus(const NodeState& node, const Shape& shape);

}  // namespace gpupool::placement
