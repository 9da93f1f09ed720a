// gpupool-bench --suite pool: how fast a real pool-scheduler grants leases, end to end: from a holder's request over gRPC, through the
// placement and a transaction of the SQLite store, to the signed tokens at the holder. The poolds are pretended ones.
#pragma once
#include <vector>

#include "tests/bench/figures.h"

namespace gpupool::bench {

struct PoolSuite {
  int rounds = 3;
  double seconds = 5;  // of each measurement
  int poolds = 100;
  int gpus = 8;        // of each
  // Lease clients at the same time, each asking over and over again. 16 keep two cores busy; with more of them the rate
  // stays about the same and each waits longer, so both are reported.
  std::vector<int> holders{16, 32};
};

std::vector<Figure> measure_pool(const PoolSuite& suite);

}  // namespace gpupool::bench
