// gpupool-bench --suite sharing: what tenants get of a GPU that they share, against what they were promised, and what it costs
// those who share and those who do not.
#pragma once
#include <string>
#include <vector>

#include "tests/bench/figures.h"

namespace gpupool::bench {

struct SharingSuite {
  std::string device = "softgpu";
  int rounds = 3;
  double seconds = 10;        // of each measurement
  double kernel_us = 1000;
  bool quick = false;         // of the shares, only two
  std::vector<std::string> only;  // parts: shares, hard, elastic, two, priorities, accounting, memory, partitions, bandwidth; empty: all
};

std::vector<Figure> measure_sharing(const SharingSuite& suite);

}  // namespace gpupool::bench
