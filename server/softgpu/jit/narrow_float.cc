#include "server/softgpu/jit/narrow_float.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "server/softgpu/jit/decoded.h"

namespace gpupool::softgpu {
namespace {

struct NarrowShape {
  int fraction_bits, bias;
  uint32_t sign, largest, nan;  // bit patterns; nan 0: the format has none
};
constexpr NarrowShape kNarrowShapes[] = {
    {3, 7, 0x80, 0x7E, 0x7F},        {2, 15, 0x80, 0x7B, 0x7F}, {3, 1, 0x20, 0x1F, 0},
    {2, 3, 0x20, 0x1F, 0},           {1, 1, 0x8, 0x7, 0},       {10, 15, 0x8000, 0x7BFF, 0x7FFF},
    {7, 127, 0x8000, 0x7F7F, 0x7FFF}};
constexpr uint32_t kFloatMagnitude = 0x7FFFFFFF, kFloatInfinity = 0x7F800000, kFloatLargest = 0x7F7FFFFF;

uint32_t to_power_of_two(float value, bool up) {
  const uint32_t bits = std::bit_cast<uint32_t>(value) & kFloatMagnitude;
  if (bits > kFloatInfinity) return 0xFF;
  const uint32_t rounded = (bits >> 23) + (up && (bits & 0x7FFFFF) ? 1 : 0);
  return rounded > 0xFE ? 0xFE : rounded;
}

}  // namespace

uint32_t softgpu_float_to_narrow(float value, NarrowFormat format, uint32_t up) {
  if (format == NarrowFormat::ue8m0) return to_power_of_two(value, up != 0);
  const NarrowShape& shape = kNarrowShapes[static_cast<size_t>(format)];
  if (std::isnan(value)) return shape.nan ? shape.nan : shape.largest;
  const uint32_t sign = std::signbit(value) ? shape.sign : 0;
  const float magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  // Larger than any of these numbers, or infinite.
  if (magnitude >= 65536) return sign | shape.largest;
  int exponent;
  std::frexp(magnitude, &exponent);  // magnitude = f * 2^exponent, with f in [0.5, 1)
  // The spacing is constant between two powers of two, and below the smallest normal number.
  const int step = std::max(exponent - 1, 1 - shape.bias) - shape.fraction_bits;
  const auto units = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, -step)));
  // An overflow of the fraction carries into the exponent field.
  const auto field = static_cast<uint32_t>(step + shape.fraction_bits + shape.bias - 1);
  const uint32_t bits = (field << shape.fraction_bits) + units;
  return sign | (bits > shape.largest ? shape.largest : bits);
}

uint32_t softgpu_float_to_narrow_stochastic(float value, NarrowFormat format, uint32_t random,
                                            uint32_t random_bits) {
  const NarrowShape& shape = kNarrowShapes[static_cast<size_t>(format)];
  if (std::isnan(value)) return shape.nan ? shape.nan : shape.largest;
  const uint32_t sign = std::signbit(value) ? shape.sign : 0;
  const bool has_infinity = format == NarrowFormat::f16 || format == NarrowFormat::bf16;
  const uint32_t beyond = sign | (has_infinity ? shape.largest + 1 : shape.largest);
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  if (std::isinf(magnitude)) return beyond;
  int exponent;
  std::frexp(magnitude, &exponent);
  const int step = std::max(exponent - 1, 1 - shape.bias) - shape.fraction_bits;
  const double fraction = std::ldexp(static_cast<double>(random), -static_cast<int>(random_bits));
  const auto units = static_cast<uint32_t>(std::ldexp(magnitude, -step) + fraction);
  const auto field = static_cast<uint32_t>(step + shape.fraction_bits + shape.bias - 1);
  const uint32_t bits = (field << shape.fraction_bits) + units;
  return bits > shape.largest ? beyond : sign | bits;
}

float softgpu_narrow_to_float(uint32_t bits, NarrowFormat format) {
  if (format == NarrowFormat::ue8m0)
    return bits == 0xFF ? NAN : std::ldexp(1.0f, static_cast<int>(bits) - 127);
  const NarrowShape& shape = kNarrowShapes[static_cast<size_t>(format)];
  const uint32_t magnitude = bits & (shape.sign - 1);
  float value;
  if (shape.nan && magnitude > shape.largest) {
    value = format == NarrowFormat::e5m2 && magnitude == 0x7C ? INFINITY : NAN;
  } else {
    const uint32_t field = magnitude >> shape.fraction_bits;
    const uint32_t fraction = magnitude & ((1u << shape.fraction_bits) - 1);
    const uint32_t units = field ? fraction | 1u << shape.fraction_bits : fraction;
    const int step = static_cast<int>(field ? field : 1) - shape.bias - shape.fraction_bits;
    value = std::ldexp(static_cast<float>(units), step);
  }
  return bits & shape.sign ? -value : value;
}

uint32_t softgpu_float_to_tf32(float value, uint32_t rounding, uint32_t saturate) {
  constexpr uint32_t kCut = 13, kBelow = (1u << kCut) - 1, kHalf = 1u << (kCut - 1);
  const uint32_t bits = std::bit_cast<uint32_t>(value), sign = bits & ~kFloatMagnitude;
  uint32_t magnitude = bits & kFloatMagnitude;
  if (magnitude > kFloatInfinity) return kFloatMagnitude;
  if (magnitude < kFloatInfinity) {
    const bool away = static_cast<Rounding>(rounding) == Rounding::nearest_away;
    const bool odd = magnitude >> kCut & 1;
    if (static_cast<Rounding>(rounding) != Rounding::zero) magnitude += away || odd ? kHalf : kHalf - 1;
    magnitude &= ~kBelow;
  }
  if (saturate && magnitude >= kFloatInfinity) magnitude = kFloatLargest & ~kBelow;
  return sign | magnitude;
}

}  // namespace gpupool::softgpu
