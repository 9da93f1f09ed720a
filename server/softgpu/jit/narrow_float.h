// Conversions to floating-point formats of at most 8 bits and tf32, and stochastic rounding. Called by
// generated code. Pure functions, thread-safe.
#pragma once
#include <cstdint>

namespace gpupool::softgpu {

enum class NarrowFormat : uint32_t {
  e4m3,   // no infinity, one NaN per sign
  e5m2,   // as IEEE 754
  e2m3,   // no infinity, no NaN
  e3m2,   // no infinity, no NaN
  e2m1,   // no infinity, no NaN
  f16,    // only for stochastic rounding
  bf16,   // only for stochastic rounding
  ue8m0,  // a power of two; 0xFF is NaN
};

extern "C" {
// Rounds to nearest even (ue8m0: towards zero, or up if `up`); values too large become the largest number.
uint32_t softgpu_float_to_narrow(float value, NarrowFormat format, uint32_t up);
// Stochastic rounding (.rs): adds `random`, in units of 2^-random_bits of the last kept place, and truncates.
// f16 and bf16 overflow to infinity.
uint32_t softgpu_float_to_narrow_stochastic(float value, NarrowFormat format, uint32_t random,
                                            uint32_t random_bits);
float softgpu_narrow_to_float(uint32_t bits, NarrowFormat format);
// `rounding` is a Rounding: nearest, nearest_away or zero. The 13 low bits of the result are zero.
uint32_t softgpu_float_to_tf32(float value, uint32_t rounding, uint32_t saturate);
}

}  // namespace gpupool::softgpu
