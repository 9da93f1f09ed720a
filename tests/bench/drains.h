// The part `drains` of gpupool-bench --suite survive: how long it takes to empty a host by moving its leases
// to another one, while their programs run (docs/operations.md, "Move a lease").
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/figures.h"

namespace gpupool::bench {

class Drains {
 public:
  Drains(std::string device, bool quick) : device_(std::move(device)), quick_(quick) {}

  // Empties two hosts by turns. Throws std::runtime_error if a host does not become empty or a program fails.
  void round();
  void add_figures(std::vector<Figure>& all) const;

 private:
  const std::string device_;
  const bool quick_;
  std::vector<double> seconds_;     // from the order until the host has no session
  std::vector<double> longest_ms_;  // launch of any program meanwhile
};

}  // namespace gpupool::bench
