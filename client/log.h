// Lines for the person who runs the program: one line on stderr each, never on stdout. GPUPOOL_LOG=debug shows more.
// Any thread; never fails.
#pragma once
#include <cstddef>

namespace gpupool::client {

// printf formats; control characters are printed as question marks. complain: what stops the program from using the GPU; explain: only with GPUPOOL_LOG=debug.
void complain(const char* format, ...) __attribute__((format(printf, 1, 2)));
void explain(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Whoever is to hear what is complained about, beside the person: without "gpupool: " and the line's end. Set once.
using ComplaintListener = void (*)(const char* text, size_t length);
extern ComplaintListener complaint_listener;

}  // namespace gpupool::client
