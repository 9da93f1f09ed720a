// The condition variables of graphs' conditional nodes, by handle: kernels set them (cudaGraphSetConditional), launches read them. One table
// of the process. Any thread.
#pragma once
#include <cstdint>

namespace gpupool::softgpu {

void add_condition(uint64_t handle, uint32_t value);
void remove_condition(uint64_t handle);
// Does nothing where there is no such condition.
void set_condition(uint64_t handle, uint32_t value);
uint32_t condition_value(uint64_t handle);

}  // namespace gpupool::softgpu
