// Writes what device code has printed. Any thread; errors are ignored, as for a kernel's printf.
#pragma once
#include <unistd.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "common/text/printable.h"

namespace gpupool::client {

// Unfiltered: output of the program's own device code.
inline void write_device_output(std::string_view text) {
  (void)std::fwrite(text.data(), 1, text.size(), stdout);
}

inline void write_device_errors(std::string_view text) {
  const std::string lines = printable_lines(text);
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, lines.data(), lines.size());
}

}  // namespace gpupool::client
