#include "client/process/log.h"

#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "common/text/printable.h"

namespace gpupool::client {

constinit std::atomic<ErrorListener> error_listener{nullptr};

namespace {

constexpr char kHead[] = "gpupool: ";

// One write per line, bypassing stdio: the program may have closed or redirected its FILE objects.
void write_line(const char* format, va_list arguments, bool is_error = false) {
  char line[1024];
  int length = std::snprintf(line, sizeof line, kHead);
  length += std::max(0, std::vsnprintf(line + length, sizeof line - length - 1, format, arguments));
  if (length > static_cast<int>(sizeof line) - 2) length = sizeof line - 2;
  constexpr size_t kHeadBytes = sizeof kHead - 1;
  // Much of the text comes from servers.
  make_printable(line + kHeadBytes, static_cast<size_t>(length) - kHeadBytes);
  line[length++] = '\n';
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line, length);
  if (!is_error) return;
  if (const ErrorListener listener = error_listener.load(std::memory_order_relaxed))
    listener(line + kHeadBytes, static_cast<size_t>(length) - kHeadBytes - 1);
}

}  // namespace

void log_error(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  write_line(format, arguments, true);
  va_end(arguments);
}

void log_warning(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  write_line(format, arguments);
  va_end(arguments);
}

void log_debug(const char* format, ...) {
  static const bool wanted = [] {
    const char* level = std::getenv("GPUPOOL_LOG");
    return level && std::strcmp(level, "debug") == 0;
  }();
  if (!wanted) return;
  va_list arguments;
  va_start(arguments, format);
  write_line(format, arguments);
  va_end(arguments);
}

}  // namespace gpupool::client
