#include "server/worker/timeline/gpu_clock.h"

#include <utility>

#include "server/worker/timeline/host_span.h"

namespace gpupool::worker {
namespace {

using namespace std::chrono_literals;

// The device's clock and the host's drift apart by some microseconds in this time, and a float has enough
// digits for it.
constexpr auto kAlignEvery = 1s;
constexpr uint64_t kLongestAlignment = 2'000'000;  // nanoseconds; an empty stream takes some microseconds

}  // namespace

void GpuClock::align() {
  const auto now = Clock::now();
  if (now < next_alignment_) return;
  next_alignment_ = now + kAlignEvery;
  if (!stream_ && api_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) {
    stream_ = nullptr;
    return;
  }
  const CUevent event = events_->take();
  if (!event) return;
  const uint64_t before = timeline_now();
  CUresult state = api_.cuEventRecord(event, stream_);
  uint64_t after = before;
  if (state == CUDA_SUCCESS) {
    do {
      state = api_.cuEventQuery(event);
      after = timeline_now();
    } while (state == CUDA_ERROR_NOT_READY && after - before < kLongestAlignment);
  }
  if (state != CUDA_SUCCESS) return events_->give(event);  // keeps the last reference
  if (reference_) events_->give(reference_);
  reference_ = event;
  error_ = (after - before) / 2;
  reference_time_ = before + error_;
}

std::optional<double> GpuClock::signed_between(CUevent start, CUevent end) const {
  float milliseconds = 0;
  if (!elapsed_ || elapsed_(&milliseconds, start, end) != CUDA_SUCCESS) return std::nullopt;
  return static_cast<double>(milliseconds) * 1e6;
}

std::optional<uint64_t> GpuClock::time_of(CUevent event) {
  align();
  if (!reference_) return std::nullopt;
  const auto after = signed_between(reference_, event);
  if (!after) return std::nullopt;
  return static_cast<uint64_t>(static_cast<int64_t>(reference_time_) + static_cast<int64_t>(*after));
}

std::optional<uint64_t> GpuClock::between(CUevent start, CUevent end) const {
  const auto length = signed_between(start, end);
  if (!length || *length < 0) return std::nullopt;
  return static_cast<uint64_t>(*length);
}

void GpuClock::close() {
  if (reference_) events_->give(std::exchange(reference_, nullptr));
  if (stream_) api_.cuStreamDestroy_v2(std::exchange(stream_, nullptr));
}

}  // namespace gpupool::worker
