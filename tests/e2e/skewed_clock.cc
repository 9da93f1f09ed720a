// A library for LD_PRELOAD that shifts the process's real-time clock by SKEW_SECONDS, to simulate a host with
// a wrong clock.
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>

namespace {

long skew() {
  static const long seconds = [] {
    const char* const text = ::getenv("SKEW_SECONDS");
    return text ? std::strtol(text, nullptr, 10) : 0;
  }();
  return seconds;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int clock_gettime(clockid_t clock, timespec* out) noexcept {
  const auto result = static_cast<int>(::syscall(SYS_clock_gettime, clock, out));
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) out->tv_sec += skew();
  return result;
}
