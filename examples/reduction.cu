// Computes the sum, minimum and maximum of an array, with warp shuffles in a block and atomics between
// blocks.
#include <algorithm>
#include <climits>
#include <vector>

#include "common/example.h"

struct Summary {
  unsigned long long sum;  // modulo 2^64, as atomicAdd() computes it
  int min;
  int max;
};

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

__device__ Summary combine(Summary a, Summary b) {
  return {a.sum + b.sum, min(a.min, b.min), max(a.max, b.max)};
}

__device__ Summary reduce_warp(Summary value) {
  for (int distance = 16; distance > 0; distance /= 2) {
    const Summary other = {__shfl_down_sync(~0u, value.sum, distance),
                           __shfl_down_sync(~0u, value.min, distance),
                           __shfl_down_sync(~0u, value.max, distance)};
    value = combine(value, other);
  }
  return value;
}

__global__ void reduce(const int* values, int count, Summary* result) {
  Summary mine = {0, INT_MAX, INT_MIN};
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    mine = combine(mine, {static_cast<unsigned long long>(values[i]), values[i], values[i]});

  __shared__ Summary of_warp[kWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  mine = reduce_warp(mine);
  if (lane == 0) of_warp[warp] = mine;
  __syncthreads();
  if (warp > 0) return;

  mine = reduce_warp(lane < kWarps ? of_warp[lane] : Summary{0, INT_MAX, INT_MIN});
  if (lane == 0) {
    atomicAdd(&result->sum, mine.sum);
    atomicMin(&result->min, mine.min);
    atomicMax(&result->max, mine.max);
  }
}

int main(int argc, char** argv) {
  long size = 1'000'000;
  parse_options(argc, argv, "Sums an array and finds its smallest and largest element.",
                {{"--size", "elements", &size}});
  const int count = static_cast<int>(size);

  std::vector<int> values(count);
  uint32_t random = 2463534242u;
  for (int& value : values) {
    random ^= random << 13, random ^= random >> 17, random ^= random << 5;
    value = static_cast<int>(random);
  }

  print_device();
  Stopwatch watch;
  int* device_values;
  Summary* device_result;
  Summary result = {0, INT_MAX, INT_MIN};
  CUDA_CHECK(cudaMalloc(&device_values, count * sizeof(int)));
  CUDA_CHECK(cudaMalloc(&device_result, sizeof(Summary)));
  CUDA_CHECK(cudaMemcpy(device_values, values.data(), count * sizeof(int), cudaMemcpyHostToDevice));
  CUDA_CHECK(cudaMemcpy(device_result, &result, sizeof(Summary), cudaMemcpyHostToDevice));

  const int blocks = std::min((count + kThreads - 1) / kThreads, 64);
  reduce<<<blocks, kThreads>>>(device_values, count, device_result);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaMemcpy(&result, device_result, sizeof(Summary), cudaMemcpyDeviceToHost));
  CUDA_CHECK(cudaFree(device_values));
  CUDA_CHECK(cudaFree(device_result));
  const double milliseconds = watch.milliseconds();

  Summary expected = {0, INT_MAX, INT_MIN};
  for (int value : values) {
    expected.sum += static_cast<unsigned long long>(value);
    expected.min = std::min(expected.min, value);
    expected.max = std::max(expected.max, value);
  }
  const bool passed = result.sum == expected.sum && result.min == expected.min && result.max == expected.max;
  std::printf("result   %d elements: sum %lld, smallest %d, largest %d\n", count,
              static_cast<long long>(result.sum), result.min, result.max);
  return finish(passed, milliseconds);
}
