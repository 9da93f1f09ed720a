// The experiment of "Beware of Fragmentation" (USENIX ATC 2023): the tasks of a trace arrive in random order, then more of them by chance,
// until the GPUs asked for are 130 % of the cluster's; each is placed at once or dropped; nothing departs. What counts is how much of all
// GPU thousandths is allocated when 100 % and 130 % have arrived.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/placement/placer.h"
#include "scheduler/sim/trace.h"

namespace gpupool::sim {

struct Point {
  double arrived = 0, allocated = 0;  // percent of the cluster's GPU thousandths
};

struct Refused {
  std::string what;    // the size: "810", "2x1000", "no GPU"
  uint32_t tasks = 0;
};

struct Times {           // microseconds of CPU time of the thread
  double p50 = 0, p99 = 0, most = 0;
};
float cpu_microseconds();  // of this thread; to be subtracted
// Sorts.
Times times_of(std::vector<float>& samples);

struct Outcome {
  uint64_t seed = 0;
  double allocated_100 = 0, allocated_130 = 0;  // percent
  double offline_100 = 0;                       // percent: offline_best_fit of what had arrived
  double unusable = 0;                          // percent of the cluster: free at the end, and no use for an average task
  uint32_t arrived = 0, refused_100 = 0, refused_130 = 0;
  std::vector<Refused> refused;                 // until 130 %
  std::vector<Point> curve;                     // at each whole percent
  Times decision;
  uint64_t beyond_inventory = 0;                // bytes: what the placer owns
  uint64_t heap_growth = 0;                     // bytes: what the process took while it ran; 0 where that cannot be told
};

struct Experiment {
  const std::vector<placement::NodeSpec>* nodes = nullptr;
  const std::vector<Task>* tasks = nullptr;
  Mode mode = Mode::local;
  placement::PolicyKind policy = placement::PolicyKind::fragmentation;
};

// The numbers of the tasks in the order of their arrival, at most `percent` of the demand that `capacity` thousandths can serve.
std::vector<uint32_t> arrivals(const std::vector<Task>& tasks, int64_t capacity, int percent, uint64_t seed);

Outcome run(const Experiment& experiment, uint64_t seed);

// The thousandths that best-fit-decreasing places of tasks known beforehand, on GPUs that belong to no host and are of no model: what online
// placement can hardly pass.
int64_t offline_best_fit(const std::vector<placement::NodeSpec>& nodes, const std::vector<const Task*>& tasks);

}  // namespace gpupool::sim
