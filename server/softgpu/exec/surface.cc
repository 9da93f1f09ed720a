// Surface loads, stores and reductions. Coordinates are in bytes, or in texels for formatted stores and
// reductions.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>

#include "server/softgpu/exec/texel.h"
#include "server/softgpu/memory/address_space.h"

namespace gpupool::softgpu {
namespace {

using namespace texture_flags;

const TextureState& surface_of(ThreadContext* thread, uint64_t& surface) {
  // The value may be the address of a surface reference.
  if (in_range(surface, 8) && surface % 8 == 0) surface = *reinterpret_cast<const uint64_t*>(surface);
  const TextureState* const found = find_texture(surface, true);
  if (!found) softgpu_fault(thread, FaultKind::illegal_address, surface);
  return *found;
}

// Returns the address of `bytes` bytes at the coordinates in `in`; 0 if outside and the access is to be
// ignored.
uint64_t address_in(ThreadContext* thread, const TextureState& s, uint32_t flags, const uint32_t* in,
                    uint32_t bytes) {
  const TextureLevel& level = s.levels[0];
  const uint32_t texel = s.format.bytes();
  const uint32_t geometry = flags & kGeometry;
  const bool layered = (flags & kLayered) != 0 || geometry == kCube;
  int64_t at[3] = {static_cast<int32_t>(in[texture_operand::kX]),
                   geometry >= k2d ? static_cast<int32_t>(in[texture_operand::kY]) : 0,
                   layered           ? static_cast<int64_t>(in[texture_operand::kLayer])
                   : geometry == k3d ? static_cast<int32_t>(in[texture_operand::kZ])
                                     : 0};
  if ((flags & kFormatted) != 0) at[0] *= texel;
  const int64_t row = int64_t{level.width} * texel;
  const int64_t most[3] = {row - bytes, int64_t{level.height} - 1,
                           int64_t{layered ? s.layers : level.depth} - 1};
  if (at[0] % bytes != 0) softgpu_fault(thread, FaultKind::misaligned_address, static_cast<uint64_t>(at[0]));
  for (int axis = 0; axis < 3; ++axis) {
    if (at[axis] >= 0 && at[axis] <= most[axis]) continue;
    if ((flags & kOutside) == kTrap || most[axis] < 0) softgpu_fault(thread, FaultKind::trap, level.address);
    if ((flags & kOutside) == kZero) return 0;
    at[axis] = std::clamp<int64_t>(at[axis], 0, most[axis]);
  }
  return level.address + static_cast<uint64_t>(at[2]) * level.slice +
         static_cast<uint64_t>(at[1]) * level.pitch + static_cast<uint64_t>(at[0]);
}

uint32_t bytes_of(uint32_t flags) {
  return flags >> kBytesShift & 31;
}

// Converts the 32 bits of a register to a channel of the format.
uint32_t converted(const TexelFormat& format, uint32_t value) {
  const float number = std::bit_cast<float>(value);
  const float most =
      static_cast<float>((uint64_t{1} << (format.bits - (format.kind == TexelKind::signed_normalized))) - 1);
  switch (format.kind) {
    case TexelKind::floating: return format.bits == 16 ? half_of(number) : value;
    case TexelKind::unsigned_normalized:
      return static_cast<uint32_t>(std::nearbyint(std::clamp(number, 0.0f, 1.0f) * most));
    case TexelKind::signed_normalized:
      return static_cast<uint32_t>(
          static_cast<int32_t>(std::nearbyint(std::clamp(number, -1.0f, 1.0f) * most)));
    case TexelKind::unsigned_integer:
      return format.bits == 32 ? value : std::min(value, (1u << format.bits) - 1);
    case TexelKind::signed_integer:
      if (format.bits == 32) return value;
      return static_cast<uint32_t>(
          std::clamp(static_cast<int32_t>(value), -(1 << (format.bits - 1)), (1 << (format.bits - 1)) - 1));
  }
  return value;
}

template <class T>
void reduce(uint64_t address, uint32_t operation, T value) {
  std::atomic_ref<T> place(*reinterpret_cast<T*>(address));
  switch (operation) {
    case 0: place.fetch_add(value, std::memory_order_relaxed); return;
    case 3: place.fetch_and(value, std::memory_order_relaxed); return;
    case 4: place.fetch_or(value, std::memory_order_relaxed); return;
    default: break;
  }
  T before = place.load(std::memory_order_relaxed);
  while (operation == 1 ? value < before : before < value) {
    if (place.compare_exchange_weak(before, value, std::memory_order_relaxed)) return;
  }
}

}  // namespace
}  // namespace gpupool::softgpu

using namespace gpupool::softgpu;

extern "C" {

void softgpu_surface_load(ThreadContext* thread, uint64_t surface, uint32_t flags, const uint32_t* in,
                          void* out) {
  const TextureState& s = surface_of(thread, surface);
  const uint32_t bytes = bytes_of(flags);
  const uint64_t address = address_in(thread, s, flags, in, bytes);
  if (address != 0)
    std::memcpy(out, reinterpret_cast<const void*>(address), bytes);
  else
    std::memset(out, 0, bytes);
}

void softgpu_surface_store(ThreadContext* thread, uint64_t surface, uint32_t flags, const uint32_t* in,
                           const void* value) {
  const TextureState& s = surface_of(thread, surface);
  const bool formatted = (flags & kFormatted) != 0;
  const uint32_t given = bytes_of(flags), bytes = formatted ? s.format.bytes() : given;
  const uint64_t address = address_in(thread, s, flags, in, bytes);
  if (address == 0) return;
  if (!formatted) {
    std::memcpy(reinterpret_cast<void*>(address), value, bytes);
    return;
  }
  uint32_t channels[4] = {0, 0, 0, 0};
  std::memcpy(channels, value, std::min<uint32_t>(given, sizeof channels));
  unsigned char texel[16] = {};
  for (uint32_t channel = 0; channel < s.format.channels; ++channel) {
    const uint32_t bits = converted(s.format, channels[channel]);
    std::memcpy(texel + channel * s.format.bits / 8, &bits, s.format.bits / 8);
  }
  std::memcpy(reinterpret_cast<void*>(address), texel, bytes);
}

void softgpu_surface_reduce(ThreadContext* thread, uint64_t surface, uint32_t flags, const uint32_t* in,
                            uint64_t value) {
  const TextureState& s = surface_of(thread, surface);
  const uint32_t bytes = bytes_of(flags), operation = flags >> kOperationShift & 7;
  const uint64_t address = address_in(thread, s, flags, in, bytes);
  if (address == 0) return;
  if (address % bytes != 0) softgpu_fault(thread, FaultKind::misaligned_address, address);
  const bool is_signed = (flags & kSigned) != 0;
  if (bytes == 8)
    is_signed ? reduce(address, operation, static_cast<int64_t>(value)) : reduce(address, operation, value);
  else
    is_signed ? reduce(address, operation, static_cast<int32_t>(value))
              : reduce(address, operation, static_cast<uint32_t>(value));
}

}  // extern "C"
