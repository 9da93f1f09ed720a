// gpupool-bench --suite sharing: measures what tenants that share a GPU get, compared with their quotas, and
// the overhead of sharing and accounting. Failures are exceptions.
#pragma once
#include <string>
#include <vector>

#include "tests/bench/figures.h"

namespace gpupool::bench {

struct SharingSuite {
  std::string device = "softgpu";
  int rounds = 3;
  double seconds = 10;      // per measurement
  double kernel_us = 1000;  // length of the kernels
  bool quick = false;       // fewer combinations of shares, fewer repetitions
  // Parts: shares, hard, elastic, two, shapes, priorities, accounting, memory, partitions, bandwidth, stuck;
  // empty: all.
  std::vector<std::string> only;
};

std::vector<Figure> measure_sharing(const SharingSuite& suite);

}  // namespace gpupool::bench
