// gpupool-bench --suite pool: measures how fast a real pool-scheduler grants leases end to end: from the
// client's gRPC request, through placement and a transaction of the SQLite store, to the signed tokens at the
// client. The poolds are simulated. Failures are exceptions.
#pragma once
#include <vector>

#include "tests/bench/figures.h"

namespace gpupool::bench {

struct PoolSuite {
  int rounds = 3;
  double seconds = 5;  // per measurement
  int poolds = 100;
  int gpus = 8;  // per poold
  // Numbers of concurrent lease clients, each of which requests one lease after the other. 16 keep two cores
  // busy; with more of them the rate is about the same but each waits longer, so both are reported.
  std::vector<int> holders{16, 32};
};

std::vector<Figure> measure_pool(const PoolSuite& suite);

}  // namespace gpupool::bench
