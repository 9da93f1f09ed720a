// Floating-point formats of at most 8 bits, and tf32. Pure functions, safe from any thread.
#pragma once
#include <cstdint>

namespace gpupool::softgpu {

enum class NarrowFormat : uint32_t {
  e4m3,   // no infinity, one NaN per sign
  e5m2,   // as IEEE 754
  e2m3,   // the rest has neither infinity nor NaN
  e3m2,
  e2m1,
  f16,    // these two are rounded at random only
  bf16,
  ue8m0,  // a power of two, 0xFF is NaN
};

extern "C" {
// Rounds to nearest even (ue8m0: towards zero, or up when `up`); what is too large becomes the largest number.
uint32_t softgpu_float_to_narrow(float value, NarrowFormat format, uint32_t up);
// Adds `random`, a fraction of 2 to the power of `random_bits`, to what would be cut off, and cuts (.rs). f16 and bf16
// overflow to infinity.
uint32_t softgpu_float_to_narrow_at_random(float value, NarrowFormat format, uint32_t random, uint32_t random_bits);
float softgpu_narrow_to_float(uint32_t bits, NarrowFormat format);
// `rounding` is a Rounding: nearest, nearest_away or zero. Results have 13 zero bits at the end.
uint32_t softgpu_float_to_tf32(float value, uint32_t rounding, uint32_t saturate);
}

}  // namespace gpupool::softgpu
