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

}  // namespace gpupool::sim
