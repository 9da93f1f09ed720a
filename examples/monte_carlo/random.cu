#include "random.h"

__constant__ uint32_t random_seed;
__device__ unsigned long long random_draws;

__device__ uint32_t random_number(uint32_t index) {
  uint32_t value = index * 0x9e3779b9u + random_seed;
  value = (value ^ (value >> 16)) * 0x7feb352du;
  value = (value ^ (value >> 15)) * 0x846ca68bu;
  return value ^ (value >> 16);
}

__device__ void count_draws(uint32_t count) {
  atomicAdd(&random_draws, count);
}
