// Messages for the user: one line each on stderr, never on stdout. GPUPOOL_LOG=debug shows more. Thread-safe;
// never fails.
#pragma once
#include <cstddef>

namespace gpupool::client {

// Take printf formats; control characters are printed as question marks. complain(): problems that stop the
// program from using the GPU. explain(): details, printed only with GPUPOOL_LOG=debug.
void complain(const char* format, ...) __attribute__((format(printf, 1, 2)));
void explain(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Also receives each line of complain(), without "gpupool: " and without the newline. Set by initialise().
using ComplaintListener = void (*)(const char* text, size_t length);
extern ComplaintListener complaint_listener;

}  // namespace gpupool::client
