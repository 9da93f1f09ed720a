// One texel of a texture, as the four 32-bit registers that a fetch returns. Internal to the texture
// functions.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "server/softgpu/exec/texture.h"

namespace gpupool::softgpu {

struct Texel {
  uint32_t bits[4] = {0, 0, 0, 0};
  float number(uint32_t channel) const { return std::bit_cast<float>(bits[channel]); }
  void set(uint32_t channel, float value) { bits[channel] = std::bit_cast<uint32_t>(value); }
};

float number_of_half(uint16_t half);
uint16_t half_of(float value);  // rounds to nearest, ties to even

// Reads a texel, which must lie in the level. Faults if the texture's memory is no longer mapped.
Texel read_texel(const TextureState& texture, const TextureLevel& level, uint32_t x, uint32_t y, uint32_t z);

}  // namespace gpupool::softgpu
