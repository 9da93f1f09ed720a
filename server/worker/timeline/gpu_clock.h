// Converts the times of a context's events to the worker's monotonic clock.
//
// The driver tells only the time between two events. So once a second an event is recorded in an empty stream
// of this class and polled: its time lies between two readings of the worker's clock. One thread at a time
// (Timeline's lock), with the context current.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "server/worker/session/contexts.h"

namespace gpupool::worker {

class GpuClock {
 public:
  using ElapsedTime = CUresult (*)(float* milliseconds, CUevent start, CUevent end);

  GpuClock(const DeviceApi& api, ElapsedTime elapsed, std::shared_ptr<EventPool> timed_events)
      : api_(api), elapsed_(elapsed), events_(std::move(timed_events)) {}

  // Returns the time at which the event passed; nullopt: the device does not tell.
  std::optional<uint64_t> time_of(CUevent event);
  // Returns the nanoseconds between two events.
  std::optional<uint64_t> between(CUevent start, CUevent end) const;
  // Nanoseconds by which time_of() may be wrong.
  uint64_t error() const { return error_; }
  // Gives back what the clock has of its context, which is about to be destroyed.
  void close();

 private:
  using Clock = std::chrono::steady_clock;
  void align();
  std::optional<double> signed_between(CUevent start, CUevent end) const;

  const DeviceApi& api_;
  const ElapsedTime elapsed_;
  const std::shared_ptr<EventPool> events_;
  CUstream stream_ = nullptr;
  CUevent reference_ = nullptr;  // null: none yet
  uint64_t reference_time_ = 0;
  uint64_t error_ = 0;
  Clock::time_point next_alignment_{};
};

}  // namespace gpupool::worker
