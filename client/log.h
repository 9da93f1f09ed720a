// Lines for the person who runs the program: one line on stderr each, never on stdout. GPUPOOL_LOG=debug shows more.
// Any thread; never fails.
#pragma once

namespace gpupool::client {

// printf formats. complain: what stops the program from using the GPU; explain: only with GPUPOOL_LOG=debug.
void complain(const char* format, ...) __attribute__((format(printf, 1, 2)));
void explain(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace gpupool::client
