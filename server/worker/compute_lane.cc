#include "server/worker/compute_lane.h"

#include <bit>

namespace gpupool::worker {

WorkKind kernel_kind(const void* function, uint64_t blocks, uint64_t threads) {
  uint64_t kind = reinterpret_cast<uintptr_t>(function);
  for (const uint64_t part : {blocks, threads}) kind = (kind ^ part) * 0x9E3779B97F4A7C15u;
  return kind | 1;
}

WorkKind transfer_kind(uint64_t bytes) { return static_cast<WorkKind>(std::bit_width(bytes)) * 2 + 2; }

ComputeLane::ComputeLane(ComputeGpu& gpu, StreamState& stream)
    : gpu(gpu), context(stream.context->object), stream(stream.stream), events(stream.context->timed_events) {}

double Estimates::of(WorkKind kind) const {
  const auto found = known_.find(kind);
  return found == known_.end() ? kUnknown : found->second;
}

void Estimates::learn(WorkKind kind, double nanoseconds) {
  if (known_.size() >= kMost && !known_.contains(kind)) known_.clear();
  const auto [known, is_new] = known_.try_emplace(kind, nanoseconds);
  if (!is_new) known->second += (nanoseconds - known->second) / 4;
}

}  // namespace gpupool::worker
