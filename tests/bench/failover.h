// gpupool-bench --suite pool --only failover: three schedulers with etcd, real poolds on softgpu, programs that run on leases all the time, and
// holders that take leases and give them back. The leading scheduler is killed (-9) again and again.
//
// What is true is asked of those who have something of it, not of the schedulers: holders say which shares they were given and when they
// gave them up, poolds which leases have sessions on which GPU, programs whether a call failed.
#pragma once
#include <vector>

#include "tests/bench/figures.h"

namespace gpupool::bench {

struct FailoverSuite {
  int kills = 50;
  int poolds = 3;
  int gpus = 2;       // of each
  int programs = 3;   // that run all the time
  int holders = 8;    // at the same time, over and over again
  int faithful = 2;   // that hold one lease all the time
};

// Throws when the pool does not come up, or not to rest at the end.
std::vector<Figure> measure_failover(const FailoverSuite& suite);

}  // namespace gpupool::bench
