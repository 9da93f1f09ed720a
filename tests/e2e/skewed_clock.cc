// A library for LD_PRELOAD that shifts the process's real-time clock, to simulate a host with a wrong clock:
// by SKEW_SECONDS, or by the number (int64_t) that the file SKEW_FILE has at the moment.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <ctime>

namespace {

using Seconds = std::atomic<int64_t>;

const Seconds* map_file(const char* name) {
  const int file = ::open(name, O_RDONLY | O_CLOEXEC);
  if (file < 0) std::abort();
  void* const mapped = ::mmap(nullptr, sizeof(Seconds), PROT_READ, MAP_SHARED, file, 0);
  ::close(file);
  if (mapped == MAP_FAILED) std::abort();
  return static_cast<const Seconds*>(mapped);
}

long seconds_of_environment() {
  const char* const text = ::getenv("SKEW_SECONDS");
  return text ? std::strtol(text, nullptr, 10) : 0;
}

const Seconds* file_of_environment() {
  const char* const name = ::getenv("SKEW_FILE");
  return name ? map_file(name) : nullptr;
}

// Read as the process starts: a worker cannot open the file later, from its sandbox.
const Seconds* const g_file = file_of_environment();
const long g_seconds = seconds_of_environment();

int64_t skew() {
  return g_file ? g_file->load() : g_seconds;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int clock_gettime(clockid_t clock, timespec* out) noexcept {
  const auto result = static_cast<int>(::syscall(SYS_clock_gettime, clock, out));
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) out->tv_sec += skew();
  return result;
}
