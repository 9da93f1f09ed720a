#include "protocol/driver/driver_log.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <deque>
#include <mutex>
#include <new>

namespace gpupool::cuda {
namespace {

struct Registered {
  driver_log::Listener call;
  void* data;
};

struct Log {
  std::mutex mutex;  // guards the lines
  std::deque<std::string> lines;
  uint32_t first = 0;  // number of the oldest line
  size_t bytes = 0;
  // Held while listeners run, so that a removed listener is no longer running. Recursive, because a listener
  // may remove itself.
  std::recursive_mutex listening;
  std::vector<std::unique_ptr<Registered>> listeners;
};
// Never destroyed: exit handlers may call the driver.
Log& log() {
  static Log* const only = new Log;
  return *only;
}

// "[hh:mm:ss.mmm][thread][CUDA][E] text", as NVIDIA's driver writes it.
std::string line_of(Severity severity, std::string_view text) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  localtime_r(&now.tv_sec, &parts);
  char head[64];
  std::snprintf(head, sizeof head, "[%02d:%02d:%02d.%03ld][%ld][CUDA][%c] ", parts.tm_hour, parts.tm_min,
                parts.tm_sec, now.tv_nsec / 1'000'000, static_cast<long>(syscall(SYS_gettid)),
                severity == Severity::error ? 'E' : 'W');
  return head + std::string(text.substr(0, driver_log::kMostBytes / 4));
}

}  // namespace

void log_for_program(Severity severity, std::string_view text) try {
  std::string line = line_of(severity, text);
  {
    const std::lock_guard lock(log().mutex);
    log().bytes += line.size() + 1;
    log().lines.push_back(line);
    while (log().bytes > driver_log::kMostBytes) {
      log().bytes -= log().lines.front().size() + 1;
      log().lines.pop_front();
      ++log().first;
    }
  }
  const std::lock_guard lock(log().listening);
  for (size_t i = 0; i < log().listeners.size(); ++i) {
    const Registered listener = *log().listeners[i];
    listener.call(listener.data, static_cast<int>(severity), line.data(), line.size());
  }
} catch (const std::bad_alloc&) {
  // The line is lost.
}

namespace driver_log {

void* add_listener(Listener listener, void* data) try {
  const std::lock_guard lock(log().listening);
  log().listeners.push_back(std::make_unique<Registered>(Registered{listener, data}));
  return log().listeners.back().get();
} catch (const std::bad_alloc&) {
  return nullptr;
}

bool remove_listener(void* handle) {
  const std::lock_guard lock(log().listening);
  return std::erase_if(log().listeners, [&](const auto& listener) { return listener.get() == handle; }) != 0;
}

uint32_t next() {
  const std::lock_guard lock(log().mutex);
  return log().first + static_cast<uint32_t>(log().lines.size());
}

std::vector<std::string> since(const uint32_t* from, bool* lost, uint32_t* end) {
  const std::lock_guard lock(log().mutex);
  const uint32_t count = static_cast<uint32_t>(log().lines.size());
  *end = log().first + count;
  const uint32_t wished = from ? *end - *from : *end;  // numbers wrap around
  *lost = wished > count;
  return {log().lines.end() - std::min(wished, count), log().lines.end()};
}

}  // namespace driver_log
}  // namespace gpupool::cuda
