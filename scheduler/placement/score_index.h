// The cheapest node for a shape, without looking at all nodes each time: costs are kept per shape and node, and only nodes that changed
// since the shape was last asked for are judged again. Owns the costs; refers to the cluster. Not thread-safe.
//
// Memory: 4 bytes for each node and shape. When the limit is reached the shape that was not asked for longest is forgotten.
#pragma once
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

  // The slot with the least cost, of equal ones the first; nothing if the shape fits nowhere.
  std::optional<uint32_t> best(const Shape& shape, const Policy& policy);
  // The same among the slots that are allowed. Looks at all nodes, judges none again.
  std::optional<uint32_t> best(const Shape& shape, const Policy& policy, const std::function<bool(uint32_t)>& allowed);
  // Another policy, or the same with other knowledge: all costs are void.
  void clear();

  size_t shapes() const { return entries_.size(); }
  size_t bytes() const;

 private:
  struct Entry {
    std::vector<float> cost;         // [slot]
    std::vector<float> block_least;  // [slot / kBlock]
    uint64_t change = 0;             // of the cluster, up to which the costs hold
    std::list<Shape>::iterator used;
  };

  Entry& refreshed(const Shape& shape, const Policy& policy);
  void judge_all(Entry& entry, const Shape& shape, const Policy& policy) const;

  const Cluster& cluster_;
  size_t most_bytes_;
  std::unordered_map<Shape, Entry, ShapeHash> entries_;
  std::list<Shape> recently_;  // used ones first
  std::vector<uint32_t> seen_;  // [slot]: the refresh that judged it last
  uint32_t refresh_ = 0;
};

}  // namespace gpupool::placement
