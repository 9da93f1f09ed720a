// Reading what a kernel points to, without trusting it. Internal to exec/.
#pragma once
#include <cstdint>

namespace gpupool::softgpu {

// False when the bytes are neither accessible memory of the reserved range nor registered host memory.
bool read_checked(void* to, uint64_t address, uint64_t bytes);
// Copies a C string, cut to capacity - 1 characters, and ends it. Returns its length, or -1 as above.
int64_t read_string_checked(char* to, uint64_t capacity, uint64_t address);

}  // namespace gpupool::softgpu
