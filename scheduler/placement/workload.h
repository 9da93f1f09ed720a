// Which shapes of request arrive how often: what has been seen so far, nothing of what is to come. Older arrivals count less.
#pragma once
#include <cstddef>
#include <unordered_map>
#include <vector>

#include "scheduler/placement/node_state.h"

namespace gpupool::placement {

struct Kind {
  Shape shape;
  double frequency = 0;  // all of a list add up to 1
};

class Workload {
 public:
  void observe(const Shape& shape, double times = 1);
  // The most frequent first, equal ones in a fixed order.
  std::vector<Kind> kinds() const;
  double total() const { return total_; }
  // How much of the arrivals is of another kind than in `before`: 0 (the same mix) to 1.
  double drift_from(const std::vector<Kind>& before) const;

 private:
  void forget();

  std::unordered_map<Shape, double, ShapeHash> counts_;
  double total_ = 0;
};

}  // namespace gpupool::placement
