#include "scheduler/placement/workload.h"

#include <algorithm>
#include <tuple>

namespace gpupool::placement {
namespace {

constexpr double kRemembered = 1 << 17;  // number of arrivals at which all counts are halved
constexpr size_t kMaxKinds = 1024;       // above, the rarest half is dropped: clients may ask for any share

auto order(const Kind& kind) {
  const Shape& shape = kind.shape;
  return std::tuple(-kind.frequency, shape.gpus, shape.milli, shape.cpu_milli, shape.host_memory,
                    shape.memory_bytes, shape.models);
}

}  // namespace

void Workload::observe(const Shape& shape, double times) {
  counts_[shape] += times;
  total_ += times;
  if (total_ >= kRemembered || counts_.size() > kMaxKinds) forget();
}

void Workload::forget() {
  if (counts_.size() > kMaxKinds) {
    std::vector<double> counts;
    for (const auto& [shape, count] : counts_) counts.push_back(count);
    const auto middle = counts.begin() + static_cast<std::ptrdiff_t>(counts.size() / 2);
    std::nth_element(counts.begin(), middle, counts.end());
    std::erase_if(counts_, [least = *middle](const auto& entry) { return entry.second <= least; });
  } else {
    for (auto& [shape, count] : counts_) count /= 2;
  }
  total_ = 0;
  for (const auto& [shape, count] : counts_) total_ += count;
}

std::vector<Kind> Workload::kinds() const {
  std::vector<Kind> kinds;
  for (const auto& [shape, count] : counts_) kinds.push_back({shape, count / total_});
  std::sort(kinds.begin(), kinds.end(), [](const Kind& a, const Kind& b) { return order(a) < order(b); });
  return kinds;
}

double Workload::drift_from(const std::vector<Kind>& before) const {
  if (total_ == 0) return 0;
  // The increases of frequencies add up to the same as the decreases, so the increases suffice.
  double known = 0, more = 0;
  for (const Kind& kind : before) {
    const auto now = counts_.find(kind.shape);
    if (now == counts_.end()) continue;
    const double frequency = now->second / total_;
    known += frequency;
    if (frequency > kind.frequency) more += frequency - kind.frequency;
  }
  return more + 1 - known;
}

}  // namespace gpupool::placement
