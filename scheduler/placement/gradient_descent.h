// Fragmentation Gradient Descent as published by Weng et al., "Beware of Fragmentation", USENIX ATC 2023: the node and GPU where the
// share of free GPU that a typical task cannot use grows least. For comparison; fragmentation.h is what gpupool uses.
//
// As in the authors' simulator costs are whole percents of a sigmoid, and typical tasks are the most frequent shapes. How many of
// them the published figures used is not told; nine tenths of all arrivals come closest.
#pragma once
#include "scheduler/placement/policy.h"

namespace gpupool::placement {

class GradientDescent : public Policy {
 public:
  explicit GradientDescent(const Surroundings& surroundings);
  Choice choose(const NodeState& node, const Shape& shape) const override;

 private:
  double fragmentation(const NodeState& node) const;

  std::vector<Kind> typical_;
};

}  // namespace gpupool::placement
