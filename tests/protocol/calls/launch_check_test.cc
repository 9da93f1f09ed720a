// Tests the error codes of launches that exceed a limit.
#include "protocol/calls/launch_check.h"

#include "tests/support/catch.h"

using namespace gpupool::cuda;

namespace {

LaunchShape blocks_of(uint32_t x, uint32_t y = 1, uint32_t z = 1) {
  return {{1, 1, 1}, {x, y, z}, 0};
}

}  // namespace

TEST_CASE("accepts a launch within all limits") {
  const LaunchLimits limits;
  for (const auto& shape : {blocks_of(1), blocks_of(1024), blocks_of(1, 1024), blocks_of(16, 1, 64)})
    CHECK(check_launch(shape, limits) == CUDA_SUCCESS);
  CHECK(check_launch({{0x7fffffff, 65535, 65535}, {1, 1, 1}, 48 * 1024}, limits) == CUDA_SUCCESS);
}

TEST_CASE("a grid or block that is empty or exceeds the device is an invalid value") {
  const LaunchLimits limits;
  for (int axis = 0; axis < 3; ++axis) {
    for (const uint32_t none_or_more : {0u, ~0u}) {
      LaunchShape grid = blocks_of(1), block = blocks_of(1);
      grid.grid[axis] = block.block[axis] = none_or_more;
      CHECK(check_launch(grid, limits) == CUDA_ERROR_INVALID_VALUE);
      CHECK(check_launch(block, limits) == CUDA_ERROR_INVALID_VALUE);
    }
  }
  for (const auto& shape : {blocks_of(1025), blocks_of(1, 1025), blocks_of(1, 1, 65), blocks_of(32, 33)}) {
    CHECK(check_launch(shape, limits) == CUDA_ERROR_INVALID_VALUE);
  }
}

TEST_CASE("more threads than a kernel may have is out of resources only where its registers do not suffice") {
  LaunchLimits limits;
  limits.function_max_threads = 256;
  limits.function_registers = 128;  // enough for 512 threads
  CHECK(check_launch(blocks_of(256), limits) == CUDA_SUCCESS);
  CHECK(check_launch(blocks_of(257), limits) == CUDA_ERROR_INVALID_VALUE);  // launch bounds
  CHECK(check_launch(blocks_of(512), limits) == CUDA_ERROR_INVALID_VALUE);
  CHECK(check_launch(blocks_of(513), limits) == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  CHECK(check_launch(blocks_of(1024), limits) == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  CHECK(check_launch(blocks_of(1025), limits) == CUDA_ERROR_INVALID_VALUE);  // more than any kernel may have
  limits.function_registers = 0xffffffff;                                    // must not overflow
  CHECK(check_launch(blocks_of(257), limits) == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
}

TEST_CASE("more dynamic shared memory than a kernel may have is an invalid value") {
  LaunchLimits limits;
  limits.max_dynamic_shared_bytes = 100;
  LaunchShape shape = blocks_of(1);
  shape.dynamic_shared_bytes = 100;
  CHECK(check_launch(shape, limits) == CUDA_SUCCESS);
  shape.dynamic_shared_bytes = 101;
  CHECK(check_launch(shape, limits) == CUDA_ERROR_INVALID_VALUE);
}
