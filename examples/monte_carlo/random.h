// A small counter-based generator; its code and tables live in random.cu, linked on the device (-rdc=true).
#pragma once

#include <cstdint>

extern __constant__ uint32_t random_seed;
extern __device__ unsigned long long random_draws;

// The index-th number of the seed's sequence, spread over 32 bits.
__device__ uint32_t random_number(uint32_t index);

// Adds to the count of numbers drawn, in random_draws.
__device__ void count_draws(uint32_t count);
