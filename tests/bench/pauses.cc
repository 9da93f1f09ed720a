#include "tests/bench/pauses.h"

#include <algorithm>
#include <sstream>
#include <string>

namespace gpupool::bench {

double milliseconds(PauseClock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

double longest_pause(const testing::Process& program, PauseClock::time_point from,
                     PauseClock::time_point to) {
  double longest = 0;
  std::istringstream lines(program.output());
  long long begin = 0, nanoseconds = 0;
  for (std::string word; lines >> word;) {
    if (word != "paused" || !(lines >> begin >> nanoseconds)) continue;
    const PauseClock::time_point start{std::chrono::nanoseconds(begin)};
    const std::chrono::nanoseconds time(nanoseconds);
    if (start < to && start + time > from) longest = std::max(longest, milliseconds(time));
  }
  return longest;
}

}  // namespace gpupool::bench
