// Generates clusters and tasks of any size, deterministically: to measure how decisions scale, not how well
// policies pack. Pure functions; used by pool_sim.cc.
#pragma once
#include <cstdint>
#include <vector>

#include "scheduler/sim/trace.h"

namespace gpupool::sim {

// Returns nodes of eight GPUs: half of them with model A and 96 processors, a quarter each with B and 128,
// and C and 192. 16 nodes form a rack, 64 racks a zone.
std::vector<placement::NodeSpec> synthetic_nodes(uint32_t count);
// Half of the tasks ask for a share of one GPU, a third for one GPU, some for 2, 4 or 8, a tenth for none. A
// tenth of the tasks with GPUs asks for model B or C.
std::vector<Task> synthetic_tasks(uint32_t count, uint64_t seed);

// Draws tasks at random, with replacement, which arrive at random times (a Poisson process) so often that
// they ask for `offered` times `gpus` GPUs on average. Tasks without GPUs are left out. Those without a
// duration get random ones (exponential) of `mean_seconds`; all are cut after `most_seconds`, because a few
// that are longer than the whole simulation would make most of the load.
struct Draw {
  uint32_t count = 20'000;
  double offered = 0.9;
  double mean_seconds = 3600, most_seconds = 86'400;
};
std::vector<Task> drawn_tasks(const std::vector<Task>& tasks, const Draw& draw, uint64_t gpus, uint64_t seed);

}  // namespace gpupool::sim
