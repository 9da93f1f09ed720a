// The part `upgrades` of gpupool-bench --suite survive: how long a launch waits while poold is replaced under
// many programs (docs/adr/0039-upgrades.md).
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/figures.h"

namespace gpupool::bench {

class Upgrades {
 public:
  Upgrades(std::string device, bool quick) : device_(std::move(device)), quick_(quick) {}

  // Throws std::runtime_error if an upgrade or a program fails.
  void round();
  void add_figures(std::vector<Figure>& all) const;

 private:
  const std::string device_;
  const bool quick_;
  std::vector<double> longest_ms_;  // launch of any program, during an upgrade
  std::vector<double> usual_ms_;    // the same while nothing is upgraded, for as long
  std::vector<double> whole_ms_;    // of pool-admin upgrade
};

}  // namespace gpupool::bench
