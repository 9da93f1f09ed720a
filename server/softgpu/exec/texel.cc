#include "server/softgpu/exec/texel.h"

#include <algorithm>

namespace gpupool::softgpu {
namespace {

float linear_of_srgb(float value) {
  return value <= 0.04045f ? value / 12.92f : std::pow((value + 0.055f) / 1.055f, 2.4f);
}

uint32_t channel_bits(const TexelFormat& format, const unsigned char* texel, uint32_t channel) {
  if (format.bits == 10) {
    uint32_t packed;
    std::memcpy(&packed, texel, 4);
    return channel < 3 ? packed >> (10 * channel) & 0x3ff : packed >> 30;
  }
  uint32_t bits = 0;
  std::memcpy(&bits, texel + channel * format.bits / 8, format.bits / 8);
  return bits;
}

int32_t extend(uint32_t bits, uint32_t width) {
  return width == 32 ? static_cast<int32_t>(bits)
                     : static_cast<int32_t>(bits << (32 - width)) >> (32 - width);
}

}  // namespace

float number_of_half(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31, fraction = half & 0x3ff;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(fraction) * 0x1p-24f) | sign);
}

uint16_t half_of(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return 0x7fff;
  if (magnitude >= 65520) return sign | 0x7c00;  // rounds to infinity
  if (magnitude < 0x1p-14f) return sign | static_cast<uint16_t>(std::nearbyint(magnitude * 0x1p24f));
  const uint32_t plain = (bits & 0x7fffffff) - 0x38000000;
  return static_cast<uint16_t>(sign | ((plain + 0xfff + (plain >> 13 & 1)) >> 13));
}

Texel read_texel(const TextureState& t, const TextureLevel& level, uint32_t x, uint32_t y, uint32_t z) {
  unsigned char raw[16];
  const uint32_t bytes = t.format.bytes();
  std::memcpy(
      raw,
      reinterpret_cast<const void*>(level.address + z * level.slice + y * level.pitch + uint64_t{x} * bytes),
      bytes);
  Texel texel;
  const TexelKind kind = t.format.kind;
  const uint32_t bits = t.format.bits;
  for (uint32_t channel = 0; channel < t.format.channels; ++channel) {
    const uint32_t value = channel_bits(t.format, raw, channel);
    const uint32_t width = bits == 10 && channel == 3 ? 2 : bits;
    const bool is_signed = kind == TexelKind::signed_integer || kind == TexelKind::signed_normalized;
    if (kind == TexelKind::floating) {
      texel.set(channel,
                bits == 16 ? number_of_half(static_cast<uint16_t>(value)) : std::bit_cast<float>(value));
    } else if (!t.to_float) {
      texel.bits[channel] = is_signed ? static_cast<uint32_t>(extend(value, width)) : value;
    } else if (is_signed) {
      texel.set(channel, std::max(static_cast<float>(extend(value, width)) /
                                      static_cast<float>((1u << (width - 1)) - 1),
                                  -1.0f));
    } else {
      const float number = static_cast<float>(value) / static_cast<float>((1u << width) - 1);
      texel.set(channel, t.srgb && bits == 8 && channel < 3 ? linear_of_srgb(number) : number);
    }
  }
  // Channels that the format lacks read as 0, the fourth as 1.
  if (t.format.channels < 4) {
    if (t.to_float || kind == TexelKind::floating)
      texel.set(3, 1.0f);
    else
      texel.bits[3] = 1;
  }
  return texel;
}

}  // namespace gpupool::softgpu
