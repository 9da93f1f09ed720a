// The host's memory that poold may fill with sessions' device memory. Any thread.
#pragma once
#include <cstdint>

namespace gpupool::server {

// Returns the bytes that are available, less a reserve for other processes of the host.
uint64_t host_memory_left();

}  // namespace gpupool::server
