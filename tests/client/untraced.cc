// Replaces client/process/trace.cc in tests of single files of the client: traces nothing.
#include "client/process/trace.h"

namespace gpupool::client::trace {

std::atomic<bool> enabled{false};
void count_call(uint16_t, size_t, std::chrono::nanoseconds) {}
void count_round_trip(uint16_t, size_t, std::chrono::nanoseconds) {}
void count_sent(uint16_t, size_t) {}
void count_received(uint16_t, size_t) {}

}  // namespace gpupool::client::trace
