#include "client/log.h"

#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace gpupool::client {
namespace {

// One write per line, past stdio: the program may have closed or redirected its FILE objects.
void write_line(const char* format, va_list arguments) {
  char line[1024];
  int length = std::snprintf(line, sizeof line, "gpupool: ");
  length += std::vsnprintf(line + length, sizeof line - length - 1, format, arguments);
  if (length > static_cast<int>(sizeof line) - 2) length = sizeof line - 2;
  line[length++] = '\n';
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line, length);
}

}  // namespace

void complain(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  write_line(format, arguments);
  va_end(arguments);
}

void explain(const char* format, ...) {
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
