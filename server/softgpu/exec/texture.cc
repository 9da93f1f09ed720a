// Texture sampling as in the CUDA programming guide's appendix on texture fetching; weights have eight
// fractional bits.
#include "server/softgpu/exec/texture.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "server/softgpu/exec/texel.h"
#include "server/softgpu/memory/address_space.h"

namespace gpupool::softgpu {
namespace {

using namespace texture_flags;

constexpr float kMaxCoordinate = 1 << 30;  // coordinates are clamped to +-kMaxCoordinate

int64_t floor_to_integer(float value) {
  return static_cast<int64_t>(std::floor(value));
}

float clamp_coordinate(float value) {
  if (std::isnan(value)) return 0;
  return std::clamp(value, -kMaxCoordinate, kMaxCoordinate);
}

// Returns a weight from 0 to 1 with eight fractional bits.
float weight(float fraction) {
  return std::nearbyint(fraction * 256) / 256;
}

// Returns the index of the texel that index `at` addresses; -1: the border color.
int64_t place(int64_t at, uint32_t size, AddressMode mode) {
  const auto n = static_cast<int64_t>(size);
  switch (mode) {
    case AddressMode::wrap: return ((at % n) + n) % n;
    case AddressMode::mirror: {
      const int64_t in_period = ((at % (2 * n)) + 2 * n) % (2 * n);
      return in_period < n ? in_period : 2 * n - 1 - in_period;
    }
    case AddressMode::border: return at < 0 || at >= n ? -1 : at;
    case AddressMode::clamp: break;
  }
  return std::clamp<int64_t>(at, 0, n - 1);
}

// The one or two texels along an axis that contribute, before the address mode is applied.
struct Axis {
  int64_t first = 0;
  float second_weight = 0;  // 0: only the first contributes
};

struct Sampler {
  const TextureState& t;
  const bool integers;  // coordinates are integer texel indices
  const bool linear;

  AddressMode mode(uint32_t axis) const {
    const AddressMode wished = t.address_mode[axis];
    if (t.cube) return AddressMode::clamp;
    // Wrap and mirror need normalized coordinates.
    const bool repeats = wished == AddressMode::wrap || wished == AddressMode::mirror;
    return repeats && (!t.normalized || integers) ? AddressMode::clamp : wished;
  }
  Axis axis(float coordinate, uint32_t size, uint32_t number, int32_t offset) const {
    float x = clamp_coordinate(coordinate);
    if (t.normalized && !integers) {
      // Reduce before multiplying, or large coordinates would lose their significant bits.
      if (mode(number) == AddressMode::wrap) x -= std::floor(x);
      if (mode(number) == AddressMode::mirror) x -= 2 * std::floor(x / 2);
      x = clamp_coordinate(x * static_cast<float>(size));
    }
    Axis axis;
    if (!linear) {
      axis.first = floor_to_integer(x) + offset;
    } else {
      const float shifted = x - 0.5f;
      axis.first = floor_to_integer(shifted) + offset;
      axis.second_weight = weight(shifted - std::floor(shifted));
    }
    return axis;
  }
  Texel border() const {
    Texel texel;
    std::memcpy(texel.bits, t.border, sizeof texel.bits);
    return texel;
  }
  // Applies the address modes. `slice`: layer or face, 0 if there are none.
  Texel texel(const TextureLevel& level, uint32_t dimensions, int64_t x, int64_t y, int64_t z,
              uint32_t slice) const {
    if (t.is_linear && (x < 0 || x >= level.width)) return Texel{};
    x = place(x, level.width, mode(0));
    y = dimensions > 1 ? place(y, level.height, mode(1)) : 0;
    z = dimensions > 2 ? place(z, level.depth, mode(2)) : 0;
    if (x < 0 || y < 0 || z < 0) return border();
    return read_texel(t, level, static_cast<uint32_t>(x), static_cast<uint32_t>(y),
                      static_cast<uint32_t>(z) + slice);
  }
};

// A direction as a cube's face and a position on it, from 0 to 1.
struct OnCube {
  uint32_t face;
  float u, v;
};
OnCube on_cube(float x, float y, float z) {
  const float ax = std::fabs(x), ay = std::fabs(y), az = std::fabs(z);
  float m, s, t;
  uint32_t face;
  if (ax >= ay && ax >= az) {
    face = x >= 0 ? 0 : 1, m = ax, s = x >= 0 ? -z : z, t = -y;
  } else if (ay >= az) {
    face = y >= 0 ? 2 : 3, m = ay, s = x, t = y >= 0 ? z : -z;
  } else {
    face = z >= 0 ? 4 : 5, m = az, s = z >= 0 ? x : -x, t = -y;
  }
  if (!(m > 0)) return {face, 0.5f, 0.5f};
  return {face, (s / m + 1) / 2, (t / m + 1) / 2};
}
// Returns the face and position of a texel that may lie beyond the edge of `face`.
OnCube around_edge(uint32_t face, int64_t x, int64_t y, uint32_t size) {
  const float s = (static_cast<float>(x) + 0.5f) / static_cast<float>(size) * 2 - 1;
  const float t = (static_cast<float>(y) + 0.5f) / static_cast<float>(size) * 2 - 1;
  switch (face) {
    case 0: return on_cube(1, -t, -s);
    case 1: return on_cube(-1, -t, s);
    case 2: return on_cube(s, 1, t);
    case 3: return on_cube(s, -1, -t);
    case 4: return on_cube(s, -t, 1);
    default: return on_cube(-s, -t, -1);
  }
}

struct Request {
  uint32_t flags;
  float x, y, z;
  uint32_t slice;
  const int32_t* offset;
  const float* reference;  // reference value of a depth comparison; null: none

  uint32_t dimensions() const { return (flags & kGeometry) == kCube ? 2 : (flags & kGeometry) + 1; }
};

Texel fetch(const Sampler& s, const TextureLevel& level, const Request& r, int64_t x, int64_t y, int64_t z) {
  Texel texel;
  const bool outside = x < 0 || y < 0 || x >= level.width || y >= level.height;
  if (s.t.cube && s.t.seamless && outside) {
    const OnCube on = around_edge(r.slice % 6, x, y, level.width);
    const float size = static_cast<float>(level.width);
    texel = s.texel(level, 2, floor_to_integer(on.u * size), floor_to_integer(on.v * size), 0,
                    r.slice - r.slice % 6 + on.face);
  } else {
    texel = s.texel(level, r.dimensions(), x, y, z, r.slice);
  }
  if (r.reference) texel.set(0, *r.reference <= texel.number(0) ? 1.0f : 0.0f);
  return texel;
}

Texel sample_level(const Sampler& s, const TextureLevel& level, const Request& r) {
  const uint32_t dimensions = r.dimensions();
  Axis axes[3];
  axes[0] = s.axis(r.x, level.width, 0, r.offset[0]);
  if (dimensions > 1) axes[1] = s.axis(r.y, level.height, 1, r.offset[1]);
  if (dimensions > 2) axes[2] = s.axis(r.z, level.depth, 2, r.offset[2]);
  if (!s.linear) return fetch(s, level, r, axes[0].first, axes[1].first, axes[2].first);
  float sum[4] = {0, 0, 0, 0};
  for (uint32_t corner = 0; corner < 1u << dimensions; ++corner) {
    float share = 1;
    int64_t at[3];
    for (uint32_t axis = 0; axis < 3; ++axis) {
      const bool second = (corner >> axis & 1) != 0;
      at[axis] = axes[axis].first + second;
      if (axis < dimensions) share *= second ? axes[axis].second_weight : 1 - axes[axis].second_weight;
    }
    if (share == 0) continue;
    const Texel texel = fetch(s, level, r, at[0], at[1], at[2]);
    for (uint32_t channel = 0; channel < 4; ++channel) sum[channel] += share * texel.number(channel);
  }
  Texel result;
  for (uint32_t channel = 0; channel < 4; ++channel) result.set(channel, sum[channel]);
  return result;
}

Texel gather(const Sampler& s, const Request& r) {
  const TextureLevel& level = s.t.levels[0];
  const Sampler between{s.t, s.integers, true};
  const int64_t x = between.axis(r.x, level.width, 0, r.offset[0]).first;
  const int64_t y = between.axis(r.y, level.height, 1, r.offset[1]).first;
  const uint32_t component = r.flags >> kComponentShift & 3;
  constexpr int kRight[4] = {0, 1, 1, 0}, kDown[4] = {1, 1, 0, 0};
  Texel result;
  for (uint32_t n = 0; n < 4; ++n)
    result.bits[n] = fetch(s, level, r, x + kRight[n], y + kDown[n], 0).bits[component];
  return result;
}

float level_of_gradient(const TextureState& t, const Request& r, const uint32_t* in) {
  const TextureLevel& level = t.levels[0];
  const uint32_t sizes[3] = {level.width, level.height, level.depth};
  float longest = 0;
  for (const uint32_t first : {texture_operand::kDx, texture_operand::kDy}) {
    float length = 0;
    for (uint32_t axis = 0; axis < ((r.flags & kGeometry) == kCube ? 3 : r.dimensions()); ++axis) {
      float step = std::bit_cast<float>(in[first + axis]);
      // Derivatives on a cube are those of the direction; a face is two units wide.
      if (t.cube)
        step *= static_cast<float>(level.width) / 2;
      else if (t.normalized)
        step *= static_cast<float>(sizes[axis]);
      length += step * step;
    }
    longest = std::max(longest, length);
  }
  return longest > 0 ? std::log2(longest) / 2 : -kMaxCoordinate;
}

Texel sample(const Sampler& s, const Request& r, const uint32_t* in) {
  const TextureState& t = s.t;
  if ((r.flags & kMode) == kGather) return gather(s, r);
  if (t.level_count == 1) return sample_level(s, t.levels[0], r);
  float lod = 0;
  if ((r.flags & kMode) == kLevel) {
    lod = s.integers ? static_cast<float>(static_cast<int32_t>(in[texture_operand::kLod]))
                     : clamp_coordinate(std::bit_cast<float>(in[texture_operand::kLod]));
  } else if ((r.flags & kMode) == kGradient) {
    lod = level_of_gradient(t, r, in);
  }
  if (!s.integers) lod = std::max(std::min(lod + t.bias, t.max_level), t.min_level);
  lod = std::clamp(lod, 0.0f, static_cast<float>(t.level_count - 1));
  if (!t.filter_levels || s.integers)
    return sample_level(s, t.levels[static_cast<uint32_t>(floor_to_integer(lod + 0.5f))], r);
  const auto first = static_cast<uint32_t>(floor_to_integer(lod));
  const float share = weight(lod - std::floor(lod));
  const Texel near = sample_level(s, t.levels[first], r);
  if (share == 0) return near;
  const Texel far = sample_level(s, t.levels[std::min(first + 1, t.level_count - 1)], r);
  Texel result;
  for (uint32_t channel = 0; channel < 4; ++channel) {
    result.set(channel, (1 - share) * near.number(channel) + share * far.number(channel));
  }
  return result;
}

}  // namespace
}  // namespace gpupool::softgpu

using namespace gpupool::softgpu;

extern "C" void softgpu_texture_fetch(ThreadContext* thread, uint64_t texture, uint32_t flags,
                                      const uint32_t* in, uint32_t* out) {
  using namespace texture_operand;
  // The value may be the address of a texture reference.
  if (in_range(texture, 8) && texture % 8 == 0) texture = *reinterpret_cast<const uint64_t*>(texture);
  const TextureState* const t = find_texture(texture, false);
  if (!t) softgpu_fault(thread, FaultKind::illegal_address, texture);
  const bool integers = (flags & kIntegers) != 0;
  const bool numbers = t->to_float || t->format.kind == TexelKind::floating;
  const Sampler sampler{*t, integers, t->filter_linear && numbers && !integers};
  const auto coordinate = [&](uint32_t which) {
    return integers ? static_cast<float>(static_cast<int32_t>(in[which])) : std::bit_cast<float>(in[which]);
  };
  constexpr int32_t kNone[3] = {0, 0, 0};
  int32_t offset[3];
  std::memcpy(offset, (flags & kOffset) != 0 ? reinterpret_cast<const int32_t*>(in + kOffsets) : kNone,
              sizeof offset);
  for (int32_t& one : offset) one = std::clamp(one, -8, 7);  // the hardware's range
  const float reference = std::bit_cast<float>(in[kReference]);
  Request request{flags,
                  coordinate(kX),
                  coordinate(kY),
                  coordinate(kZ),
                  0,
                  offset,
                  (flags & kCompare) != 0 ? &reference : nullptr};
  const bool cube = (flags & kGeometry) == kCube;
  if (cube && !t->cube) softgpu_fault(thread, FaultKind::illegal_address, texture);
  const uint32_t per_layer = cube ? 6 : 1;
  if ((flags & kLayered) != 0) request.slice = std::min(in[kLayer], t->layers / per_layer - 1) * per_layer;
  if (cube) {
    const OnCube on =
        on_cube(clamp_coordinate(request.x), clamp_coordinate(request.y), clamp_coordinate(request.z));
    request.slice += on.face;
    request.x = on.u;
    request.y = on.v;
  }
  const Texel result = sample(sampler, request, in);
  if ((flags & kHalf) == 0) {
    std::memcpy(out, result.bits, sizeof result.bits);
    return;
  }
  for (uint32_t pair = 0; pair < 2; ++pair) {
    out[pair] = half_of(result.number(2 * pair)) | uint32_t{half_of(result.number(2 * pair + 1))} << 16;
  }
}
