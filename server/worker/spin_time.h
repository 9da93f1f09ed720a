// How long the executor looks at the device itself before it parks a wait: a wait thread costs two wake-ups, and on NVIDIA's driver an
// interrupt. Learnt from how long the session's waits take: longer than a moment only where that is expected to pay and cores are free.
//
// limit() belongs to the executor's thread, took() to any.
#pragma once
#include <atomic>
#include <chrono>

namespace gpupool::worker {

class SpinTime {
 public:
  using Clock = std::chrono::steady_clock;
  using Microseconds = std::chrono::microseconds;
  static constexpr Microseconds kMoment{25}, kLeast{100}, kMost{200};
  static constexpr int kFreeCores = 4;  // with fewer nobody spins: sessions and other programs need them

  // Processors that this process may use, less the load average of the last minute.
  static int free_cores();
  explicit SpinTime(int (*count_free)() = free_cores) : count_free_(count_free) {}

  Microseconds limit();
  // A wait that was not over at once has taken this long.
  void took(Clock::duration time);

 private:
  int (*const count_free_)();
  bool cores_are_free_ = false;
  Clock::time_point counted_{};
  std::atomic<int64_t> mean_{std::chrono::nanoseconds(Microseconds{1000}).count()};
};

}  // namespace gpupool::worker
