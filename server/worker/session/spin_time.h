// Determines how long the executor polls the device before it parks a wait: a wait thread costs two wake-ups,
// and with NVIDIA's driver an interrupt. Learned from the durations of the session's waits; polling longer
// than a moment is only allowed where it is likely to pay off and CPU cores are free.
//
// limit(): executor's thread; note_wait(): any thread.
#pragma once
#include <atomic>
#include <chrono>

namespace gpupool::worker {

class SpinTime {
 public:
  using Clock = std::chrono::steady_clock;
  using Microseconds = std::chrono::microseconds;
  static constexpr Microseconds kShortSpin{25}, kLeast{100}, kMost{200};
  // No longer polling with fewer free cores: other sessions and programs need them.
  static constexpr int kFreeCores = 4;

  // Returns the number of CPUs of this process, less the load average of the last minute.
  static int free_cores();
  explicit SpinTime(int (*count_free)() = free_cores) : count_free_(count_free) {}

  Microseconds limit();
  // Reports the duration of a wait that had not finished at once.
  void note_wait(Clock::duration time);

 private:
  int (*const count_free_)();
  bool cores_are_free_ = false;
  Clock::time_point counted_{};
  std::atomic<int64_t> mean_{std::chrono::nanoseconds(Microseconds{1000}).count()};
};

}  // namespace gpupool::worker
