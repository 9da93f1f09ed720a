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
  int holders = 16;    // at the same time, each over and over again: enough to keep two cores busy
};

std::vector<Figure> measure_pool(const PoolSuite& suite);

}  // namespace gpupool::bench
