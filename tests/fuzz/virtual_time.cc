#include "tests/fuzz/virtual_time.h"

#include <atomic>

namespace {

std::atomic<int64_t> g_nanoseconds{int64_t{1'000'000} *
                                   1'000'000'000};  // atomic: other threads may read it, too

}  // namespace

// Replaces libstdc++'s function.
std::chrono::steady_clock::time_point std::chrono::steady_clock::now() noexcept {
  return time_point(duration(g_nanoseconds.load()));
}

namespace gpupool::fuzz {

void Loop::pass(std::chrono::milliseconds time) {
  g_nanoseconds += std::chrono::nanoseconds(time).count();
  // asio checks its timers when the kernel's timer expires, which does not follow this clock. A timer that is
  // due at once makes asio set the kernel's timer again.
  bool due = false;
  asio::steady_timer first(context, std::chrono::steady_clock::time_point::min());
  first.async_wait([&due](const asio::error_code&) { due = true; });
  while (!due) settle();
  settle();
}

}  // namespace gpupool::fuzz
