// The clock shared by gpupool-bench and its programs: CLOCK_MONOTONIC, in seconds.
#pragma once
#include <time.h>
#include <unistd.h>

namespace gpupool::bench {

inline double now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

inline void sleep_until(double when) {
  const double left = when - now();
  if (left > 0) ::usleep(static_cast<useconds_t>(left * 1e6));
}

}  // namespace gpupool::bench
