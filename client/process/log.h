// Messages for the user: one line each on stderr, never on stdout. GPUPOOL_LOG=debug shows more. Thread-safe;
// never fails.
#pragma once
#include <atomic>
#include <cstddef>

namespace gpupool::client {

// Take printf formats; control characters are printed as question marks. log_error(): problems that stop the
// program from using the GPU. log_warning(): problems of single calls, and what the user should know
// meanwhile. log_debug(): details, printed only with GPUPOOL_LOG=debug.
void log_error(const char* format, ...) __attribute__((format(printf, 1, 2)));
void log_warning(const char* format, ...) __attribute__((format(printf, 1, 2)));
void log_debug(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Also receives each line of log_error(), without "gpupool: " and without the newline. Set by initialise().
using ErrorListener = void (*)(const char* text, size_t length);
extern std::atomic<ErrorListener> error_listener;

}  // namespace gpupool::client
