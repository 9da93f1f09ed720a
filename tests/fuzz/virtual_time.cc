#include "tests/fuzz/virtual_time.h"

#include <sys/timerfd.h>

#include <atomic>
#include <cerrno>

namespace {

std::atomic<int64_t> g_nanoseconds{int64_t{1'000'000} *
                                   1'000'000'000};  // atomic: other threads may read it, too

}  // namespace

// Replaces libstdc++'s function.
std::chrono::steady_clock::time_point std::chrono::steady_clock::now() noexcept {
  return time_point(duration(g_nanoseconds.load()));
}

// The kernel's timers do not follow this clock. Without them, asio compares its timers with the clock
// whenever it polls, which also saves most of the system calls of an input.
extern "C" int timerfd_create(clockid_t, int) noexcept {
  errno = ENOSYS;
  return -1;
}

namespace gpupool::fuzz {

void Loop::pass(std::chrono::milliseconds time) {
  g_nanoseconds += std::chrono::nanoseconds(time).count();
  settle();
}

}  // namespace gpupool::fuzz
