// Clusters and tasks of any size, made from a seed: to see how decisions scale, not how well anything is packed. Pure.
#pragma once
#include <cstdint>
#include <vector>

#include "scheduler/sim/trace.h"

namespace gpupool::sim {

// Nodes of eight GPUs: half of model A with 96 processors, the others of B and C with 128 and 192; 16 to a rack, 64 racks to a zone.
std::vector<placement::NodeSpec> synthetic_nodes(uint32_t count);
// Half of the tasks ask for a share of one GPU, most others for one GPU, some for 2, 4 or 8; a tenth for no GPU, a tenth for certain models.
std::vector<Task> synthetic_tasks(uint32_t count, uint64_t seed);

}  // namespace gpupool::sim
