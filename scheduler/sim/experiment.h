// The experiment of "Beware of Fragmentation" (USENIX ATC 2023): the tasks of a trace arrive in random order,
// followed by randomly drawn ones, until 130 % of the cluster's GPUs have been requested. Each task is placed
// at once or dropped; none departs. The result is the share of all GPU thousandths that is allocated when 100
// % and 130 % have arrived. Used by pool_sim.cc; throws std::runtime_error on bad input or a broken
// invariant.
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
  std::string what;  // size of the tasks: "810", "2x1000", "no GPU"
  uint32_t tasks = 0;
};

struct Times {  // microseconds of the thread's CPU time
  double p50 = 0, p99 = 0, most = 0;
};
float cpu_microseconds();  // this thread's CPU time modulo 1000 s; only differences are meaningful
// Sorts `samples`.
Times times_of(std::vector<float>& samples);

struct Outcome {
  uint64_t seed = 0;
  double allocated_100 = 0, allocated_130 = 0;  // percent
  double offline_100 = 0;                       // percent: offline_best_fit() of the same tasks
  double unusable = 0;                          // percent: free at the end but unusable for an average task
  uint32_t arrived = 0, refused_100 = 0, refused_130 = 0;
  std::vector<Refused> refused;  // up to 130 %
  std::vector<Point> curve;      // at each whole percent
  Times decision;
  uint64_t beyond_inventory = 0;  // bytes: Placer::bytes() at the end
  uint64_t heap_growth = 0;       // bytes by which the process's heap grew; 0 if it did not
};

struct Experiment {
  const std::vector<placement::NodeSpec>* nodes = nullptr;
  const std::vector<Task>* tasks = nullptr;
  Mode mode = Mode::local;
  placement::PolicyKind policy = placement::PolicyKind::fragmentation;
};

// Returns the indexes of the tasks in their order of arrival, until they request `percent` of `capacity`
// thousandths.
std::vector<uint32_t> arrivals(const std::vector<Task>& tasks, int64_t capacity, int percent, uint64_t seed);

Outcome run(const Experiment& experiment, uint64_t seed);

// Returns the thousandths that best-fit-decreasing allocates if all tasks are known in advance, and hosts and
// models are ignored: an approximate upper bound for online placement.
int64_t offline_best_fit(const std::vector<placement::NodeSpec>& nodes,
                         const std::vector<const Task*>& tasks);

}  // namespace gpupool::sim
