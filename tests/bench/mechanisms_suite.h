// gpupool-bench --suite mechanisms: what single mechanisms cost or gain, each beside the same program without it: memory
// quotas, memory pools, compression on a slow link, and the cache of module images.
#pragma once
#include <string>
#include <vector>

#include "tests/bench/figures.h"
#include "tests/support/processes.h"

namespace gpupool::bench {

struct MechanismsSuite {
  std::string device = "softgpu";
  testing::Environment direct;    // for a program on the device library itself
  int rounds = 5;
  bool quick = false;
  std::vector<std::string> only;  // of quota, pools, compression, images; empty: all
};

// Throws std::runtime_error when a program fails.
std::vector<Figure> measure_mechanisms(const MechanismsSuite& suite);

}  // namespace gpupool::bench
