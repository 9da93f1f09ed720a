#include "tests/scheduler/core/first_fit.h"

namespace gpupool::scheduler {

std::optional<std::vector<GpuSlot>> FirstFit::place(const Demand& demand) {
  std::vector<GpuSlot> slots;
  for (const bool near : {true, false}) {
    for (auto& [name, node] : nodes_) {
      if (demand.near.contains(&node) != near || !node.open() || demand.apart.contains(&node)) continue;
      if (demand.one_host) slots.clear();
      const uint32_t most =
          demand.gpus_beside(node.host.spare(), demand.gpus - static_cast<uint32_t>(slots.size()));
      uint32_t here = 0;
      for (uint32_t gpu = 0; gpu < node.gpus.size() && here < most; ++gpu) {
        if (!demand.suits(node.gpus[gpu]) ||
            !demand.of(node.gpus[gpu]).within(node.gpus[gpu].allocations.spare()))
          continue;
        slots.push_back({&node, gpu});
        ++here;
      }
      if (slots.size() == demand.gpus) return slots;
    }
  }
  return std::nullopt;
}

}  // namespace gpupool::scheduler
