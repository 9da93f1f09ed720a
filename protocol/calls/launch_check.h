// Checks a launch's shape, in the client library (before anything is queued) and in softgpu. Pure; any
// thread. Returns the codes documented for cuLaunchKernel. More threads than a kernel's launch bounds are
// CUDA_ERROR_INVALID_VALUE, more than its registers allow CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, as programs
// report of NVIDIA's driver; not verified on a GPU.
#pragma once
#include <cstdint>

#include "protocol/driver/cuda_header.h"

namespace gpupool::cuda {

struct LaunchShape {
  uint32_t grid[3];
  uint32_t block[3];
  uint64_t dynamic_shared_bytes;
};

struct LaunchLimits {
  uint32_t max_threads_per_block = 1024;  // of the device
  uint32_t max_block[3] = {1024, 1024, 64};
  uint32_t max_grid[3] = {0x7fffffff, 65535, 65535};
  uint32_t registers_per_block = 65536;           // of the device
  uint32_t function_registers = 0;                // CU_FUNC_ATTRIBUTE_NUM_REGS, per thread
  uint32_t function_max_threads = 1024;           // CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
  uint64_t max_dynamic_shared_bytes = 48 * 1024;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
};

// True for the CU_LAUNCH_ATTRIBUTE_... that CUDA 13.0 knows. NVIDIA's driver is believed to reject others
// with CUDA_ERROR_INVALID_VALUE.
inline bool is_launch_attribute(CUlaunchAttributeID id) {
  return static_cast<unsigned>(id) <= 16;
}

inline CUresult check_launch(const LaunchShape& shape, const LaunchLimits& limits) {
  uint64_t threads = 1;
  for (int axis = 0; axis < 3; ++axis) {
    if (shape.grid[axis] == 0 || shape.grid[axis] > limits.max_grid[axis]) return CUDA_ERROR_INVALID_VALUE;
    if (shape.block[axis] == 0 || shape.block[axis] > limits.max_block[axis]) return CUDA_ERROR_INVALID_VALUE;
    threads *= shape.block[axis];
  }
  if (threads > limits.max_threads_per_block) return CUDA_ERROR_INVALID_VALUE;
  if (threads > limits.function_max_threads) {
    return threads * limits.function_registers > limits.registers_per_block
               ? CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
               : CUDA_ERROR_INVALID_VALUE;
  }
  if (shape.dynamic_shared_bytes > limits.max_dynamic_shared_bytes) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

}  // namespace gpupool::cuda
