// Tasks that arrive and depart at their times. Who cannot be placed waits; when something departs, those who wait are tried in the order
// of their arrival, and later ones may pass those that still do not fit (backfill without reservations).
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "scheduler/sim/experiment.h"

namespace gpupool::sim {

struct Waiting {
  uint32_t tasks = 0;
  double mean = 0, p50 = 0, p99 = 0, most = 0;  // seconds
};

struct Replayed {
  uint32_t placed = 0, never = 0;               // never: that no node could ever serve
  double mean_allocated = 0, most_allocated = 0;  // percent of the cluster, the mean over time until the last arrival
  Waiting waiting;
  std::map<std::string, Waiting> by_size;       // "no GPU", "share", "one GPU", "several GPUs"
  std::map<std::string, Waiting> by_tenant;
  double fairness = 1;                          // Jain's index of the tenants' mean slowdown: 1 all alike, 1 / tenants one bears it all
  Times decision;
  std::vector<std::pair<double, double>> curve;  // hours, percent allocated
};

// `load`: tasks arrive so many times as fast.
Replayed replay(const Experiment& experiment, double load, uint64_t seed);

}  // namespace gpupool::sim
