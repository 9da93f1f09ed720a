#include "scheduler/core/first_fit.h"

namespace gpupool::scheduler {

std::optional<std::vector<Spot>> FirstFit::place(const Demand& demand) {
  std::vector<Spot> spots;
  for (const bool near : {true, false}) {
    for (auto& [name, node] : nodes_) {
      if (demand.near.contains(&node) != near || !node.open() || demand.apart.contains(&node)) continue;
      if (!demand.host.within(node.host.spare())) continue;
      if (demand.one_host) spots.clear();
      for (uint32_t gpu = 0; gpu < node.gpus.size() && spots.size() < demand.gpus; ++gpu) {
        if (demand.suits(node.gpus[gpu]) && demand.of(node.gpus[gpu]).within(node.gpus[gpu].book.spare())) spots.push_back({&node, gpu});
      }
      if (spots.size() == demand.gpus) return spots;
    }
  }
  return std::nullopt;
}

}  // namespace gpupool::scheduler
