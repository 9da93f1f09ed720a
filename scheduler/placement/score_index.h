// Cache of placement costs per shape and node. best() finds the cheapest node for a shape and recomputes only
// the costs of nodes that changed since the last query of that shape. Used by Placer; reads the cluster. Not
// thread-safe.
//
// It takes 4 bytes per node and cached shape. When the limit is reached, a new shape must be queried twice in
// a short time to be cached, in place of the least recently used one. For a shape that is not cached, a
// sample of the nodes that it fits on is evaluated.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <unordered_map>
#include <vector>

#include "scheduler/placement/cluster.h"
#include "scheduler/placement/policy.h"

namespace gpupool::placement {

class ScoreIndex {
 public:
  ScoreIndex(const Cluster& cluster, size_t most_bytes) : cluster_(cluster), most_bytes_(most_bytes) {}

  // Returns the slot with the least cost, the first among equal ones; null if the shape fits nowhere. With
  // `allowed` it considers only the slots for which that returns true, and scans the costs of all nodes.
  using Allowed = std::function<bool(uint32_t)>;
  std::optional<uint32_t> best(const Shape& shape, const Policy& policy, const Allowed& allowed = {});
  // Invalidates all costs after a change of the policy. Each query then recomputes a part of its shape's
  // costs (kRenewed nodes); until then the old ones are used.
  void renew() { ++epoch_; }

  size_t shapes() const { return entries_.size(); }
  size_t bytes() const;

 private:
  struct Entry {
    std::vector<float> cost;         // [slot]
    std::vector<float> block_least;  // [slot / kBlock]
    uint64_t change = 0;             // the cluster's change number that the costs are valid for
    uint32_t epoch = 0;              // policy epoch of the costs of slots below `renewed`; others are older
    uint32_t renewed = 0;
    std::list<Shape>::iterator used;
  };

  Entry& entry_for(const Shape& shape, const Policy& policy);
  void judge_range(Entry& entry, const Shape& shape, const Policy& policy, uint32_t begin,
                   uint32_t end) const;
  void judge_all(Entry& entry, const Shape& shape, const Policy& policy) const;
  bool admit_to_cache(const Shape& shape);
  std::optional<uint32_t> best_of_some(const Shape& shape, const Policy& policy, const Allowed& allowed);

  const Cluster& cluster_;
  size_t most_bytes_;
  std::unordered_map<Shape, Entry, ShapeHash> entries_;
  std::list<Shape> recently_;   // cached shapes, most recently used first
  std::vector<uint32_t> seen_;  // [slot]: the refresh_ that last recomputed it
  uint32_t refresh_ = 0;
  uint32_t epoch_ = 0;
  std::array<size_t, 64> recently_rejected_{};  // hashes of recent shapes that were not cached
  std::vector<uint32_t> fitting_;
};

}  // namespace gpupool::placement
