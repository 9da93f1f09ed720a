#include "server/worker/compute/compute_lane.h"

#include <algorithm>
#include <bit>

namespace gpupool::worker {

// The key of a kernel's family is even and the keys of its shapes are odd, so they never collide.
WorkKind kernel_kind(const void* function, uint64_t blocks, uint64_t threads) {
  uint64_t hash = reinterpret_cast<uintptr_t>(function) * 0x9E3779B97F4A7C15u;
  const uint64_t family = hash & ~uint64_t{1};
  for (const uint64_t part : {blocks, threads}) hash = (hash ^ part) * 0x9E3779B97F4A7C15u;
  return {hash | 1, family,
          static_cast<double>(blocks) * static_cast<double>(std::max<uint64_t>(1, threads))};
}

WorkKind transfer_kind(uint64_t bytes) {
  constexpr uint64_t kFamily = 2;
  return {static_cast<uint64_t>(std::bit_width(bytes)) * 2 + kFamily + 2, kFamily,
          static_cast<double>(std::max<uint64_t>(1, bytes))};
}

ComputeLane::ComputeLane(ComputeGpu& gpu, StreamState& stream)
    : gpu(gpu),
      context(stream.context->object),
      stream(stream.stream),
      events(stream.context->timed_events),
      samplable(stream.stream || !stream.context->green) {}

const double* Estimates::find(uint64_t key) {
  const auto found = known_.find(key);
  if (found == known_.end()) return nullptr;
  times_.splice(times_.begin(), times_, found->second);
  return &found->second->second;
}

double Estimates::of(const WorkKind& kind) {
  constexpr double kShortest = 5e3;  // nanoseconds; lower bound of scaled estimates: the time of a launch
  if (const double* const time = find(kind.shape)) return *time;
  if (const double* const time = find(kind.family)) return std::max(kShortest, *time * kind.size);
  return kUnknown;
}

void Estimates::learn(const WorkKind& kind, double nanoseconds) {
  learn(kind.family, nanoseconds / kind.size);
  learn(kind.shape, nanoseconds);
}

void Estimates::learn(uint64_t key, double time) {
  if (find(key)) {
    times_.front().second += (time - times_.front().second) / 4;
    return;
  }
  if (times_.size() >= kMost) {
    known_.erase(times_.back().first);
    times_.pop_back();
  }
  times_.emplace_front(key, time);
  known_[key] = times_.begin();
}

}  // namespace gpupool::worker
