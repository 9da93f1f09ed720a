// Fragmentation Gradient Descent as published by Weng et al., "Beware of Fragmentation", USENIX ATC 2023:
// chooses the node and GPU where the share of free GPU that a typical task cannot use grows least. Used for
// comparison only; gpupool's own policy is fragmentation.h.
//
// As in the authors' simulator, costs are whole percents of a sigmoid, and the typical tasks are the most
// frequent shapes. The paper does not say how many; those of 90 % of all arrivals reproduce its figures best.
#pragma once
#include "scheduler/placement/policy.h"

namespace gpupool::placement {

class GradientDescent : public Policy {
 public:
  explicit GradientDescent(const PolicyInput& input);
  Choice choose(const NodeState& node, const Shape& shape) const override;

 private:
  double fragmentation(const NodeState& node) const;

  std::vector<Kind> typical_;
};

}  // namespace gpupool::placement
