// Estimates pi from random points. Its device code is in two files, which nvcc -rdc=true links (relocatable
// device code).
#include "../common/example.h"
#include "random.h"

__host__ __device__ inline bool in_circle(uint32_t x, uint32_t y) {
  const uint64_t a = x >> 1, b = y >> 1, radius = 1u << 31;
  return a * a + b * b < radius * radius;
}

__global__ void throw_points(uint32_t count, unsigned long long* inside) {
  const uint32_t threads = gridDim.x * blockDim.x;
  uint32_t hits = 0, draws = 0;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += threads) {
    hits += in_circle(random_number(2 * i), random_number(2 * i + 1));
    draws += 2;
  }
  atomicAdd(inside, static_cast<unsigned long long>(hits));
  count_draws(draws);
}

static uint32_t host_random(uint32_t index, uint32_t seed) {
  uint32_t value = index * 0x9e3779b9u + seed;
  value = (value ^ (value >> 16)) * 0x7feb352du;
  value = (value ^ (value >> 15)) * 0x846ca68bu;
  return value ^ (value >> 16);
}

int main(int argc, char** argv) {
  long size = 1'000'000, seed_option = 2026;
  parse_options(argc, argv, "Estimates pi from random points in a square.",
                {{"--size", "points", &size}, {"--seed", "random seed", &seed_option}});
  const uint32_t count = static_cast<uint32_t>(size), seed = static_cast<uint32_t>(seed_option);

  print_device();
  Stopwatch watch;
  const unsigned long long zero = 0;
  unsigned long long inside = 0, draws = 0, *device_inside;
  CUDA_CHECK(cudaMalloc(&device_inside, sizeof inside));
  CUDA_CHECK(cudaMemset(device_inside, 0, sizeof inside));
  CUDA_CHECK(cudaMemcpyToSymbol(random_seed, &seed, sizeof seed));
  CUDA_CHECK(cudaMemcpyToSymbol(random_draws, &zero, sizeof zero));
  throw_points<<<16, 128>>>(count, device_inside);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaMemcpy(&inside, device_inside, sizeof inside, cudaMemcpyDeviceToHost));
  CUDA_CHECK(cudaMemcpyFromSymbol(&draws, random_draws, sizeof draws));
  CUDA_CHECK(cudaFree(device_inside));
  const double milliseconds = watch.milliseconds();

  unsigned long long expected = 0;
  for (uint32_t i = 0; i < count; ++i)
    expected += in_circle(host_random(2 * i, seed), host_random(2 * i + 1, seed));
  std::printf("result   %llu of %u points inside: pi is about %.5f\n", inside, count,
              4.0 * static_cast<double>(inside) / count);
  return finish(inside == expected && draws == 2ull * count, milliseconds);
}
