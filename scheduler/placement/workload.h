// Frequencies of the request shapes that have arrived so far. Older arrivals count less. Used by Placer; not
// thread-safe.
#pragma once
#include <cstddef>
#include <unordered_map>
#include <vector>

#include "scheduler/placement/node_state.h"

namespace gpupool::placement {

struct Kind {
  Shape shape;
  double frequency = 0;  // the frequencies of a list add up to 1
};

class Workload {
 public:
  void observe(const Shape& shape, double times = 1);
  // Returns the most frequent shapes first; the order is deterministic.
  std::vector<Kind> kinds() const;
  double total() const { return total_; }
  // Returns the distance of the present mix from `before`, the total variation: 0 (the same mix) to 1.
  double drift_from(const std::vector<Kind>& before) const;

 private:
  void forget();

  std::unordered_map<Shape, double, ShapeHash> counts_;
  double total_ = 0;
};

}  // namespace gpupool::placement
