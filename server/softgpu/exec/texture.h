// Textures and surfaces as kernels see them: a table of descriptions, and the functions that generated code
// calls to sample, query, load and store.
//
// A description holds plain numbers; its creator owns the memory. Texture values passed by kernels are looked
// up in the table and never dereferenced as descriptions, so an invalid or stale value ends the grid with
// CUDA_ERROR_ILLEGAL_ADDRESS. Accesses never leave the description's extent; if the memory behind it is gone,
// they fault like any other access. Any thread may add and remove descriptions; the memory of a slot is never
// freed, and slots are reused as late as possible.
#pragma once
#include <cstdint>

#include "server/softgpu/exec/abi.h"

namespace gpupool::softgpu {

enum class TexelKind : uint8_t {
  unsigned_integer,
  signed_integer,
  floating,
  unsigned_normalized,
  signed_normalized
};

struct TexelFormat {
  TexelKind kind = TexelKind::unsigned_integer;
  uint8_t bits = 8;      // per channel; 10: three channels of ten bits and one of two
  uint8_t channels = 1;  // 1, 2 or 4
  uint32_t bytes() const { return bits == 10 ? 4 : uint32_t{bits} / 8 * channels; }
};

enum class AddressMode : uint8_t { wrap, clamp, mirror, border };  // values of CUaddress_mode

struct TextureLevel {
  uint64_t address = 0;
  uint64_t pitch = 0, slice = 0;              // bytes between rows, and between slices, layers or faces
  uint32_t width = 1, height = 1, depth = 1;  // texels; depth is 1 unless the texture is 3D
};

constexpr uint32_t kMaxTextureLevels = 16;

struct TextureState {
  bool is_surface = false;
  bool is_linear = false;   // linear memory without rows: fetches outside of it give 0
  bool to_float = false;    // integers are read as floats in [0, 1] or [-1, 1]
  bool normalized = false;  // coordinates are normalized
  bool filter_linear = false;
  bool filter_levels = false;  // linear filtering between mipmap levels
  bool srgb = false;
  bool seamless = false;  // filters across a cube's edges
  bool cube = false;
  AddressMode address_mode[3] = {AddressMode::wrap, AddressMode::wrap, AddressMode::wrap};
  TexelFormat format;
  float bias = 0, min_level = 0, max_level = 0;
  float border[4] = {0, 0, 0, 0};
  uint32_t layers = 1;  // 6 for a cube, 6 per layer for a layered cube
  uint32_t level_count = 1;
  TextureLevel levels[kMaxTextureLevels];
};

// Returns the value to pass to kernels; 0 if 65536 textures exist.
uint64_t add_texture(const TextureState& state);
// Makes the calling thread's next add_texture() return `handle`, an earlier value in this process or one of
// another process, if its slot is free. Used to restore checkpoints and to migrate sessions.
void set_next_texture(uint64_t handle);
bool remove_texture(uint64_t handle);
// Returns null if there is no such texture (or surface).
const TextureState* find_texture(uint64_t handle, bool surface);

// The properties of a texture or surface instruction, packed into one number by the code generator.
namespace texture_flags {
constexpr uint32_t k1d = 0, k2d = 1, k3d = 2, kCube = 3, kGeometry = 3;
constexpr uint32_t kLayered = 1 << 2;
constexpr uint32_t kIntegers = 1 << 3;  // coordinates are integer texel indices
constexpr uint32_t kLevel = 1 << 4, kGradient = 2 << 4, kGather = 3 << 4, kMode = 3 << 4;
constexpr uint32_t kComponentShift = 6;  // two bits: the component of a gather
constexpr uint32_t kHalf = 1 << 8;       // results are pairs of f16
constexpr uint32_t kOffset = 1 << 9;
constexpr uint32_t kCompare = 1 << 10;
// Surfaces.
constexpr uint32_t kTrap = 0, kClamp = 1 << 4, kZero = 2 << 4, kOutside = 3 << 4;
constexpr uint32_t kBytesShift = 6;       // bytes of the access, up to 16
constexpr uint32_t kFormatted = 1 << 12;  // x counts texels, values are converted
constexpr uint32_t kOperationShift = 16;  // operation of a reduction: add, min, max, and, or
constexpr uint32_t kSigned = 1 << 20;
}  // namespace texture_flags

// Indices of a call's operands, 32 bits each.
namespace texture_operand {
constexpr uint32_t kX = 0, kY = 1, kZ = 2, kLayer = 3, kLod = 4, kDx = 4, kDy = 7, kOffsets = 10,
                   kReference = 13, kCount = 14;
}

enum class TextureQuery : uint32_t {
  width,
  height,
  depth,
  channel_data_type,
  channel_order,
  normalized_coords,
  force_unnormalized_coords,
  filter_mode,
  addr_mode_0,
  addr_mode_1,
  addr_mode_2,
  array_size,
  num_mipmap_levels,
  num_samples,
  memory_layout,
};

extern "C" {
// Writes four results; two with kHalf.
void softgpu_texture_fetch(ThreadContext*, uint64_t texture, uint32_t flags, const uint32_t* in,
                           uint32_t* out);
uint32_t softgpu_texture_query(ThreadContext*, uint64_t texture, uint32_t query, uint32_t level,
                               uint32_t surface);
void softgpu_surface_load(ThreadContext*, uint64_t surface, uint32_t flags, const uint32_t* in, void* out);
void softgpu_surface_store(ThreadContext*, uint64_t surface, uint32_t flags, const uint32_t* in,
                           const void* value);
void softgpu_surface_reduce(ThreadContext*, uint64_t surface, uint32_t flags, const uint32_t* in,
                            uint64_t value);
uint32_t softgpu_is_texture(ThreadContext*, uint64_t value, uint32_t surface);
}

}  // namespace gpupool::softgpu
