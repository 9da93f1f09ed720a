// The end of a time that the worker measures itself, on its own clock: a copy whose data its threads move, or
// a wait of a stream for the client. finish() and discard(): any thread; the first call counts.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>

namespace gpupool::worker {

// Nanoseconds of the worker's monotonic clock, as in protocol/wire/timeline.h.
inline uint64_t timeline_now() {
  return static_cast<uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
}

class HostSpan {
 public:
  static constexpr uint64_t kDiscarded = ~uint64_t{0};

  void finish() { end_at(timeline_now()); }
  // There is nothing to record.
  void discard() { end_at(kDiscarded); }
  // 0: not finished.
  uint64_t end() const { return end_.load(std::memory_order_relaxed); }

 private:
  void end_at(uint64_t time) {
    uint64_t running = 0;
    end_.compare_exchange_strong(running, time, std::memory_order_relaxed);
  }
  std::atomic<uint64_t> end_{0};
};

}  // namespace gpupool::worker
