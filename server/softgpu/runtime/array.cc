#include "server/softgpu/runtime/array.h"

#include <algorithm>
#include <bit>

#include "protocol/calls/array_bytes.h"
#include "server/softgpu/runtime/device.h"
#include "server/softgpu/runtime/runtime.h"

namespace gpupool::softgpu {
namespace {

constexpr uint64_t kLevelAlignment = 512;
constexpr unsigned kKnownFlags = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP |
                                 CUDA_ARRAY3D_TEXTURE_GATHER | CUDA_ARRAY3D_DEPTH_TEXTURE |
                                 CUDA_ARRAY3D_COLOR_ATTACHMENT;

struct Extent {
  uint64_t width, height, depth;
};
bool fits(const CUDA_ARRAY3D_DESCRIPTOR& a, Extent most) {
  return a.Width <= most.width && a.Height <= most.height && a.Depth <= most.depth;
}

uint64_t slices_of(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  return std::max<uint64_t>(shape.Depth, 1);
}

uint64_t bytes_of(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  return shape.Width * texel_format(shape.Format, shape.NumChannels)->bytes() *
         std::max<uint64_t>(shape.Height, 1) * slices_of(shape);
}

CUDA_ARRAY3D_DESCRIPTOR level_of(CUDA_ARRAY3D_DESCRIPTOR shape, unsigned level) {
  const auto halve = [level](size_t size) { return size == 0 ? 0 : std::max<size_t>(size >> level, 1); };
  shape.Width = halve(shape.Width);
  shape.Height = halve(shape.Height);
  if ((shape.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) == 0) shape.Depth = halve(shape.Depth);
  return shape;
}

CUresult allocate(Context& context, uint64_t bytes, uint64_t* address) {
  Device& device = context.device();
  const auto memory = device.allocate(bytes);
  if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
  MemoryRange range;
  range.address = *memory;
  range.size = bytes;
  range.kind = MemoryKind::array;
  range.device = device.index();
  range.context = context.root().handle();
  if (!runtime().memory().add(range)) {
    device.heap().free(*memory);
    return CUDA_ERROR_UNKNOWN;
  }
  *address = *memory;
  return CUDA_SUCCESS;
}

void free_memory(Context& context, uint64_t address) {
  context.synchronize();
  const auto taken = runtime().memory().take(
      address, [](const MemoryRange& range) { return range.kind == MemoryKind::array; });
  if (taken) runtime().release(*taken);
}

}  // namespace

std::optional<TexelFormat> texel_format(CUarray_format format, unsigned channels) {
  const auto plain = [&](TexelKind kind, uint8_t bits) -> std::optional<TexelFormat> {
    if (channels != 1 && channels != 2 && channels != 4) return std::nullopt;
    return TexelFormat{kind, bits, static_cast<uint8_t>(channels)};
  };
  const int number = static_cast<int>(format);
  switch (number) {
    case CU_AD_FORMAT_UNSIGNED_INT8: return plain(TexelKind::unsigned_integer, 8);
    case CU_AD_FORMAT_UNSIGNED_INT16: return plain(TexelKind::unsigned_integer, 16);
    case CU_AD_FORMAT_UNSIGNED_INT32: return plain(TexelKind::unsigned_integer, 32);
    case CU_AD_FORMAT_SIGNED_INT8: return plain(TexelKind::signed_integer, 8);
    case CU_AD_FORMAT_SIGNED_INT16: return plain(TexelKind::signed_integer, 16);
    case CU_AD_FORMAT_SIGNED_INT32: return plain(TexelKind::signed_integer, 32);
    case CU_AD_FORMAT_HALF: return plain(TexelKind::floating, 16);
    case CU_AD_FORMAT_FLOAT: return plain(TexelKind::floating, 32);
    case 0x50:  // CU_AD_FORMAT_UNORM_INT_101010_2
      return channels == 4 ? std::optional(TexelFormat{TexelKind::unsigned_normalized, 10, 4}) : std::nullopt;
    default: break;
  }
  // CU_AD_FORMAT_UNORM_INT8X1 to CU_AD_FORMAT_SNORM_INT16X4: each includes the number of channels.
  if (number < 0xc0 || number > 0xcb) return std::nullopt;
  const int place = number - 0xc0;
  constexpr uint8_t kChannels[3] = {1, 2, 4};
  if (channels != kChannels[place % 3]) return std::nullopt;
  return TexelFormat{place < 6 ? TexelKind::unsigned_normalized : TexelKind::signed_normalized,
                     static_cast<uint8_t>(place / 3 % 2 == 0 ? 8 : 16), kChannels[place % 3]};
}

CUresult check_array(const CUDA_ARRAY3D_DESCRIPTOR& a, bool mipmapped) {
  if (cuda::is_unsupported_format(a.Format)) return CUDA_ERROR_NOT_SUPPORTED;
  if ((a.Flags & ~kKnownFlags) != 0 || a.Width == 0 || !texel_format(a.Format, a.NumChannels))
    return CUDA_ERROR_INVALID_VALUE;
  const bool layered = (a.Flags & CUDA_ARRAY3D_LAYERED) != 0,
             surface = (a.Flags & CUDA_ARRAY3D_SURFACE_LDST) != 0;
  const auto bad = [](bool right) { return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; };
  using namespace limits;
  if ((a.Flags & CUDA_ARRAY3D_CUBEMAP) != 0) {
    const bool faces = layered ? a.Depth != 0 && a.Depth % 6 == 0 : a.Depth == 6;
    return bad(faces && a.Width == a.Height && a.Width <= kCubeWidth &&
               a.Depth <= static_cast<size_t>(layered ? kCubeLayers : 6));
  }
  if ((a.Flags & CUDA_ARRAY3D_TEXTURE_GATHER) != 0 &&
      (a.Height == 0 || (a.Depth != 0 && !layered) || !fits(a, {kGather, kGather, kLayers}))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (layered) return bad(a.Depth != 0 && fits(a, {kLayeredWidth, kLayeredWidth, kLayers}));
  if (a.Depth != 0) {
    const Extent most{kTexture3d, kTexture3d, kTexture3d},
        other{kTexture3dOther, kTexture3dOther, kTexture3dOtherDepth};
    return bad(a.Height != 0 && (fits(a, most) || (!surface && fits(a, other))));
  }
  if (a.Height != 0)
    return bad(mipmapped ? fits(a, {kMipmappedWidth, kMipmappedWidth, 0})
                         : fits(a, {kTexture2dWidth, kTexture2dHeight, 0}));
  return bad(a.Width <= static_cast<size_t>(mipmapped ? kMipmappedWidth : surface ? kSurface1d : kTexture1d));
}

Array::Array(const CUDA_ARRAY3D_DESCRIPTOR& shape, uint64_t address, Ref<Context> context, bool is_level)
    : shape_(shape),
      format_(*texel_format(shape.Format, shape.NumChannels)),
      context_(std::move(context)),
      is_level_(is_level) {
  level_.address = address;
  level_.width = static_cast<uint32_t>(shape.Width);
  level_.height = static_cast<uint32_t>(std::max<size_t>(shape.Height, 1));
  slices_ = static_cast<uint32_t>(slices_of(shape));
  level_.depth = layered() ? 1 : slices_;
  level_.pitch = uint64_t{level_.width} * format_.bytes();
  level_.slice = level_.pitch * level_.height;
}

bool Array::make_handle() {
  handle_ = runtime().handles().add(Ref<Array>::share(this));
  if (handle_ != 0) context_->root().add_child(handle_);
  return handle_ != 0;
}

CUresult Array::create(Context& context, const CUDA_ARRAY3D_DESCRIPTOR& wanted, Ref<Array>* array) {
  if (const CUresult result = check_array(wanted, false); result != CUDA_SUCCESS) return result;
  uint64_t address = 0;
  if (const CUresult result = allocate(context, bytes_of(wanted), &address); result != CUDA_SUCCESS)
    return result;
  Ref<Array> made = make_ref<Array>(wanted, address, Ref<Context>::share(&context.root()), false);
  if (!made->make_handle()) {
    made->destroy();
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *array = std::move(made);
  return CUDA_SUCCESS;
}

void Array::destroy() {
  context_->root().remove_child(handle_);
  if (!is_level_) free_memory(*context_, level_.address);
}

CUresult MipmappedArray::create(Context& context, const CUDA_ARRAY3D_DESCRIPTOR& wanted, unsigned levels,
                                Ref<MipmappedArray>* array) {
  if (const CUresult result = check_array(wanted, true); result != CUDA_SUCCESS) return result;
  const bool layered = (wanted.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
  const size_t longest = std::max({wanted.Width, wanted.Height, layered ? size_t{1} : wanted.Depth});
  const auto most = std::min<unsigned>(static_cast<unsigned>(std::bit_width(longest)), kMaxTextureLevels);
  levels = std::clamp(levels, 1u, most);
  Ref<MipmappedArray> made =
      Ref<MipmappedArray>::adopt(new MipmappedArray(wanted, Ref<Context>::share(&context.root())));
  std::vector<uint64_t> places;
  for (unsigned level = 0; level < levels; ++level) {
    places.push_back(made->bytes_);
    made->bytes_ +=
        (bytes_of(level_of(wanted, level)) + kLevelAlignment - 1) / kLevelAlignment * kLevelAlignment;
  }
  if (const CUresult result = allocate(context, made->bytes_, &made->address_); result != CUDA_SUCCESS)
    return result;
  made->handle_ = runtime().handles().add(made);
  bool full = made->handle_ == 0;
  if (!full) context.root().add_child(made->handle_);
  for (unsigned level = 0; level < levels && !full; ++level) {
    made->levels_.push_back(
        make_ref<Array>(level_of(wanted, level), made->address_ + places[level], made->context_, true));
    full = !made->levels_.back()->make_handle();
  }
  if (full) {
    made->destroy();
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *array = std::move(made);
  return CUDA_SUCCESS;
}

void MipmappedArray::destroy() {
  context_->root().remove_child(handle_);
  runtime().handles().remove<MipmappedArray>(handle_);
  for (const Ref<Array>& level : levels_) {
    runtime().handles().remove<Array>(level->handle());
    level->destroy();
  }
  free_memory(*context_, address_);
}

}  // namespace gpupool::softgpu
