// What a measured program has printed of calls that took long: lines "paused START TIME", in nanoseconds of
// the monotonic clock, which is the same in all processes.
#pragma once
#include <chrono>

#include "tests/support/processes.h"

namespace gpupool::bench {

using PauseClock = std::chrono::steady_clock;

double milliseconds(PauseClock::duration time);
// The longest pause, in milliseconds, that has some of its time between the two; 0: there was none.
double longest_pause(const testing::Process& program, PauseClock::time_point from, PauseClock::time_point to);

}  // namespace gpupool::bench
