// gpupool-bench --suite pool --only failover: measures failovers of a pool with three schedulers, etcd, real
// poolds on softgpu, programs on leases, and lease clients that acquire and release leases. The leading
// scheduler is killed (SIGKILL) repeatedly.
//
// Correctness is judged without the schedulers' own state: clients record their shares, poolds report the
// leases with sessions on each GPU, and programs report failed calls.
#pragma once
#include <vector>

#include "tests/bench/figures.h"

namespace gpupool::bench {

struct FailoverSuite {
  int kills = 50;
  int poolds = 3;
  int gpus = 2;        // per poold
  int programs = 3;    // programs that run all the time
  int holders = 8;     // concurrent clients that acquire one lease after the other
  int long_lived = 2;  // clients that hold one lease all the time
};

// Throws std::runtime_error if the pool does not start, or is not idle at the end.
std::vector<Figure> measure_failover(const FailoverSuite& suite);

}  // namespace gpupool::bench
