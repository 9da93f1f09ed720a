// Condition values of graphs' conditional nodes, by handle. Kernels set them (cudaGraphSetConditional); graph
// launches read them. One table for the process. Thread-safe.
#pragma once
#include <cstdint>

namespace gpupool::softgpu {

void add_condition(uint64_t handle, uint32_t value);
void remove_condition(uint64_t handle);
// Does nothing if there is no such condition.
void set_condition(uint64_t handle, uint32_t value);
// Returns 0 if there is no such condition.
uint32_t condition_value(uint64_t handle);

}  // namespace gpupool::softgpu
