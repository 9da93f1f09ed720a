// The cheapest node for a shape, without looking at all nodes each time: costs are kept per shape and node, and only nodes that changed
// since the shape was last asked for are judged again. Owns the costs; refers to the cluster. Not thread-safe.
//
// Memory: 4 bytes for each node and shape. When the limit is reached, a shape that was asked for twice among a few others takes the place of the
// one that was not asked for longest; for others, some of the nodes that they fit on are judged, and nothing is kept.
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

  // The slot with the least cost, of equal ones the first; nothing if the shape fits nowhere. Among the slots that are allowed, if that is given:
  // then all nodes are looked at, though none is judged again.
  using Allowed = std::function<bool(uint32_t)>;
  std::optional<uint32_t> best(const Shape& shape, const Policy& policy, const Allowed& allowed = {});
  // The policy has learned: all costs are judged anew, of each shape a few thousand nodes whenever it is asked for.
  void renew() { ++epoch_; }

  size_t shapes() const { return entries_.size(); }
  size_t bytes() const;

 private:
  struct Entry {
    std::vector<float> cost;         // [slot]
    std::vector<float> block_least;  // [slot / kBlock]
    uint64_t change = 0;             // of the cluster, up to which the costs hold
    uint32_t epoch = 0;              // of the policy, which judged the slots below `renewed`; the others are of an earlier one
    uint32_t renewed = 0;
    std::list<Shape>::iterator used;
  };

  Entry& refreshed(const Shape& shape, const Policy& policy);
  void judge_range(Entry& entry, const Shape& shape, const Policy& policy, uint32_t begin, uint32_t end) const;
  void judge_all(Entry& entry, const Shape& shape, const Policy& policy) const;
  bool makes_room(const Shape& shape);
  std::optional<uint32_t> best_of_some(const Shape& shape, const Policy& policy, const Allowed& allowed);

  const Cluster& cluster_;
  size_t most_bytes_;
  std::unordered_map<Shape, Entry, ShapeHash> entries_;
  std::list<Shape> recently_;  // used ones first
  std::vector<uint32_t> seen_;  // [slot]: the refresh that judged it last
  uint32_t refresh_ = 0;
  uint32_t epoch_ = 0;
  std::array<size_t, 64> newcomers_{};  // hashes of shapes that were not kept
  std::vector<uint32_t> fitting_;
};

}  // namespace gpupool::placement
