#include "scheduler/web/gpu_utilization.h"

#include <algorithm>

namespace gpupool::pool {

void GpuUtilization::measure(Counter& counter, int64_t at_ms, uint64_t nanoseconds) {
  const bool is_reset = nanoseconds < counter.nanoseconds || at_ms < counter.at_ms;
  if (counter.at_ms == 0 || is_reset) {
    counter = {at_ms, nanoseconds, std::nullopt};
    return;
  }
  const int64_t passed = at_ms - counter.at_ms;
  if (passed < kMeasuredMs) return;
  // Nanoseconds per millisecond are millionths.
  const uint64_t milli = (nanoseconds - counter.nanoseconds) / static_cast<uint64_t>(passed) / 1000;
  counter = {at_ms, nanoseconds, static_cast<uint32_t>(std::min<uint64_t>(milli, 1000))};
}

void GpuUtilization::note(const PoolSnapshot& snapshot) {
  std::map<Key, Counter> kept;
  for (const NodeState& node : snapshot.nodes()) {
    for (const PoolGpu& gpu : node.gpus()) {
      Key key{gpu.node(), gpu.uuid()};
      const auto found = counters_.find(key);
      Counter counter = found == counters_.end() ? Counter{} : found->second;
      if (node.heard_ms() == 0 || snapshot.taken_ms() - node.heard_ms() > kSilentMs)
        counter = {};
      else
        measure(counter, node.heard_ms(), gpu.gpu_nanoseconds());
      kept.emplace(std::move(key), counter);
    }
  }
  counters_ = std::move(kept);
}

std::optional<uint32_t> GpuUtilization::milli(const PoolGpu& gpu) const {
  const auto found = counters_.find({gpu.node(), gpu.uuid()});
  return found == counters_.end() ? std::nullopt : found->second.milli;
}

std::optional<uint64_t> GpuUtilization::total_milli() const {
  std::optional<uint64_t> total;
  for (const auto& [key, counter] : counters_) {
    if (counter.milli) total = total.value_or(0) + *counter.milli;
  }
  return total;
}

}  // namespace gpupool::pool
