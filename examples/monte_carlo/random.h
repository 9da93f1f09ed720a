// A small counter-based random number generator in device code. It is defined in random.cu, so programs need
// relocatable device code (-rdc=true).
#pragma once

#include <cstdint>

extern __constant__ uint32_t random_seed;
extern __device__ unsigned long long random_draws;

// Returns the index-th number of the seed's sequence: 32 random bits.
__device__ uint32_t random_number(uint32_t index);

// Adds `count` to random_draws, the number of random numbers drawn.
__device__ void count_draws(uint32_t count);
