// Reads memory that a kernel points to without trusting the pointer. Internal to exec/; called by printf and
// assertions on the pool thread that runs the block.
#pragma once
#include <cstdint>

namespace gpupool::softgpu {

// Returns false if the bytes are neither accessible memory of the reserved range nor registered host memory.
bool read_checked(void* to, uint64_t address, uint64_t bytes);
// Copies a C string, truncated to capacity - 1 characters, and terminates it. Returns its length, or -1 if
// the string cannot be read or capacity is 0.
int64_t read_string_checked(char* to, uint64_t capacity, uint64_t address);

}  // namespace gpupool::softgpu
