// gpupool-bench --suite mechanisms: measures the cost or gain of single mechanisms compared with the same
// program without them: memory quotas, memory pools, compression on a slow link, and the cache of module
// images.
#pragma once
#include <string>
#include <vector>

#include "tests/bench/figures.h"
#include "tests/support/processes.h"

namespace gpupool::bench {

struct MechanismsSuite {
  std::string device = "softgpu";
  testing::Environment direct;  // for a program directly on the device library
  int rounds = 5;
  bool quick = false;
  std::vector<std::string> only;  // parts: quota, pools, compression, images; empty: all
};

// Throws std::runtime_error if a program fails.
std::vector<Figure> measure_mechanisms(const MechanismsSuite& suite);

}  // namespace gpupool::bench
