#include "server/softgpu/runtime/texture.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "server/softgpu/runtime/device.h"
#include "server/softgpu/runtime/runtime.h"

namespace gpupool::softgpu {
namespace {

constexpr unsigned kReadAsInteger = 1, kNormalized = 2, kSrgb = 0x10, kTrilinear = 0x20,
                   kSeamless = 0x40;  // CU_TRSF_*

// Handles of the objects, by CUtexObject or CUsurfObject.
struct Known {
  std::mutex mutex;
  std::unordered_map<uint64_t, uint64_t> handles;
};
Known& known() {
  static Known* const only = new Known;
  return *only;
}

// Drops a destroyed object once the kernels that may use it have ended.
class DropOp final : public Op {
 public:
  explicit DropOp(Ref<TextureObject> object) : object_(std::move(object)) {}

 private:
  void start() override {
    object_ = nullptr;
    complete();
  }
  void skip() override { start(); }
  Ref<TextureObject> object_;
};

// The uncompressed formats of CUresourceViewFormat.
std::optional<TexelFormat> view_format(CUresourceViewFormat format) {
  const int place = static_cast<int>(format) - 1;
  if (place < 0 || place > 0x17) return std::nullopt;
  constexpr struct {
    TexelKind kind;
    uint8_t bits;
  } kKinds[] = {{TexelKind::unsigned_integer, 8},  {TexelKind::signed_integer, 8},
                {TexelKind::unsigned_integer, 16}, {TexelKind::signed_integer, 16},
                {TexelKind::unsigned_integer, 32}, {TexelKind::signed_integer, 32},
                {TexelKind::floating, 16},         {TexelKind::floating, 32}};
  constexpr uint8_t kChannels[] = {1, 2, 4};
  return TexelFormat{kKinds[place / 3].kind, kKinds[place / 3].bits, kChannels[place % 3]};
}

// Applies a resource view: a part of the levels and layers, or another format with texels of the same size.
CUresult apply_view(const CUDA_RESOURCE_VIEW_DESC& view, TextureState* state) {
  const auto format =
      view.format == CU_RES_VIEW_FORMAT_NONE ? std::optional(state->format) : view_format(view.format);
  if (!format || format->bytes() != state->format.bytes()) return CUDA_ERROR_INVALID_VALUE;
  if (view.firstMipmapLevel > view.lastMipmapLevel || view.lastMipmapLevel >= state->level_count)
    return CUDA_ERROR_INVALID_VALUE;
  if (view.firstLayer > view.lastLayer || view.lastLayer >= state->layers) return CUDA_ERROR_INVALID_VALUE;
  const TextureLevel& first = state->levels[0];
  if (view.width != first.width || std::max<size_t>(view.height, 1) != first.height)
    return CUDA_ERROR_INVALID_VALUE;
  state->format = *format;
  std::copy(state->levels + view.firstMipmapLevel, state->levels + view.lastMipmapLevel + 1, state->levels);
  state->level_count = view.lastMipmapLevel - view.firstMipmapLevel + 1;
  if (view.lastLayer != 0) {
    state->layers = view.lastLayer - view.firstLayer + 1;
    for (uint32_t level = 0; level < state->level_count; ++level) {
      state->levels[level].address += view.firstLayer * state->levels[level].slice;
    }
  }
  return CUDA_SUCCESS;
}

CUresult make_of(const CUDA_RESOURCE_DESC& resource, bool surface, TextureState* state) {
  if (resource.flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto& res = resource.res;
  switch (resource.resType) {
    case CU_RESOURCE_TYPE_ARRAY: {
      const Ref<Array> array = runtime().handles().find<Array>(reinterpret_cast<uint64_t>(res.array.hArray));
      if (!array) return CUDA_ERROR_INVALID_HANDLE;
      if (surface && array->format().bits == 10) return CUDA_ERROR_INVALID_VALUE;
      set_resource(*array, state);
      return CUDA_SUCCESS;
    }
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: {
      if (surface) return CUDA_ERROR_INVALID_VALUE;
      const Ref<MipmappedArray> array =
          runtime().handles().find<MipmappedArray>(reinterpret_cast<uint64_t>(res.mipmap.hMipmappedArray));
      if (!array) return CUDA_ERROR_INVALID_HANDLE;
      set_resource(*array, state);
      return CUDA_SUCCESS;
    }
    case CU_RESOURCE_TYPE_LINEAR: {
      const auto format = texel_format(res.linear.format, res.linear.numChannels);
      if (surface || !format) return CUDA_ERROR_INVALID_VALUE;
      return set_linear_memory(res.linear.devPtr, *format, res.linear.sizeInBytes, state);
    }
    case CU_RESOURCE_TYPE_PITCH2D: {
      const auto format = texel_format(res.pitch2D.format, res.pitch2D.numChannels);
      if (surface || !format) return CUDA_ERROR_INVALID_VALUE;
      return set_pitch_linear_memory(res.pitch2D.devPtr, *format, res.pitch2D.width, res.pitch2D.height,
                                     res.pitch2D.pitchInBytes, state);
    }
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

void set_resource(const Array& array, TextureState* state) {
  state->format = array.format();
  state->level_count = 1;
  state->levels[0] = array.level();
  state->layers = array.layered() ? array.slices() : 1;
  state->cube = (array.shape().Flags & CUDA_ARRAY3D_CUBEMAP) != 0;
  state->is_linear = false;
}

void set_resource(const MipmappedArray& array, TextureState* state) {
  set_resource(*array.levels().front(), state);
  state->level_count = static_cast<uint32_t>(array.levels().size());
  for (uint32_t level = 0; level < state->level_count; ++level)
    state->levels[level] = array.levels()[level]->level();
}

CUresult set_linear_memory(CUdeviceptr address, TexelFormat format, uint64_t bytes, TextureState* state) {
  const uint64_t width = bytes / format.bytes();
  if (address == 0 || address % limits::kTextureAlignment != 0 || width == 0 || width > limits::kLinear1d)
    return CUDA_ERROR_INVALID_VALUE;
  // As in NVIDIA's driver, the texture may be longer than its memory; fetching beyond that is an illegal
  // access.
  if (!runtime().memory().accessible(address, format.bytes(), false)) return CUDA_ERROR_INVALID_VALUE;
  state->format = format;
  state->is_linear = true;
  state->layers = state->level_count = 1;
  state->levels[0] = TextureLevel{address, bytes, bytes, static_cast<uint32_t>(width), 1, 1};
  return CUDA_SUCCESS;
}

CUresult set_pitch_linear_memory(CUdeviceptr address, TexelFormat format, uint64_t width, uint64_t height,
                                 uint64_t pitch, TextureState* state) {
  if (address == 0 || address % limits::kTextureAlignment != 0 || pitch % limits::kTexturePitchAlignment != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (width == 0 || height == 0 || width > limits::kLinear2dWidth || height > limits::kLinear2dHeight ||
      pitch > limits::kLinear2dPitch || pitch < width * format.bytes()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!runtime().memory().accessible(address, pitch * (height - 1) + width * format.bytes(), false))
    return CUDA_ERROR_INVALID_VALUE;
  state->format = format;
  state->is_linear = false;
  state->layers = state->level_count = 1;
  state->levels[0] = TextureLevel{
      address, pitch, pitch * height, static_cast<uint32_t>(width), static_cast<uint32_t>(height), 1};
  return CUDA_SUCCESS;
}

CUresult set_sampling(const SamplingSettings& sampling, TextureState* state) {
  if ((sampling.flags & ~(kReadAsInteger | kNormalized | kSrgb | kTrilinear | kSeamless)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  const auto known_filter = [](CUfilter_mode mode) {
    return mode == CU_TR_FILTER_MODE_POINT || mode == CU_TR_FILTER_MODE_LINEAR;
  };
  if (!known_filter(sampling.filter) || !known_filter(sampling.level_filter)) return CUDA_ERROR_INVALID_VALUE;
  for (int axis = 0; axis < 3; ++axis) {
    const auto mode = static_cast<unsigned>(sampling.address_mode[axis]);
    if (mode > CU_TR_ADDRESS_MODE_BORDER) return CUDA_ERROR_INVALID_VALUE;
    state->address_mode[axis] = static_cast<AddressMode>(mode);
  }
  state->filter_linear = sampling.filter == CU_TR_FILTER_MODE_LINEAR;
  state->filter_levels = sampling.level_filter == CU_TR_FILTER_MODE_LINEAR;
  state->normalized = (sampling.flags & kNormalized) != 0 || state->cube;
  state->srgb = (sampling.flags & kSrgb) != 0;
  state->seamless = (sampling.flags & kSeamless) != 0;
  const TexelKind kind = state->format.kind;
  const bool integer = kind == TexelKind::unsigned_integer || kind == TexelKind::signed_integer;
  state->to_float = kind != TexelKind::floating &&
                    (!integer || (state->format.bits < 32 && (sampling.flags & kReadAsInteger) == 0));
  state->bias = sampling.bias;
  state->min_level = sampling.min_level;
  state->max_level = sampling.max_level;
  std::memcpy(state->border, sampling.border, sizeof state->border);
  return CUDA_SUCCESS;
}

CUresult TextureObject::create(Context& context, const CUDA_RESOURCE_DESC& resource,
                               const CUDA_TEXTURE_DESC* texture, const CUDA_RESOURCE_VIEW_DESC* view,
                               uint64_t* value) {
  TextureState state;
  state.is_surface = texture == nullptr;
  if (const CUresult result = make_of(resource, state.is_surface, &state); result != CUDA_SUCCESS)
    return result;
  const bool of_array =
      resource.resType == CU_RESOURCE_TYPE_ARRAY || resource.resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
  if (view != nullptr) {
    if (!of_array) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = apply_view(*view, &state); result != CUDA_SUCCESS) return result;
  }
  if (texture != nullptr) {
    SamplingSettings sampling;
    std::copy(texture->addressMode, texture->addressMode + 3, sampling.address_mode);
    sampling.filter = texture->filterMode;
    sampling.level_filter = texture->mipmapFilterMode;
    sampling.flags = texture->flags;
    sampling.bias = texture->mipmapLevelBias;
    sampling.min_level = texture->minMipmapLevelClamp;
    sampling.max_level = texture->maxMipmapLevelClamp;
    std::copy(texture->borderColor, texture->borderColor + 4, sampling.border);
    if (texture->maxAnisotropy > 16) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = set_sampling(sampling, &state); result != CUDA_SUCCESS) return result;
  }
  const Ref<TextureObject> made =
      Ref<TextureObject>::adopt(new TextureObject(resource, Ref<Context>::share(&context.root())));
  if (texture != nullptr) made->texture_ = *texture;
  if (view != nullptr) made->view_ = *view;
  made->value_ = add_texture(state);
  if (made->value_ == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  made->handle_ = runtime().handles().add(made);
  if (made->handle_ == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  context.root().add_child(made->handle_);
  const std::lock_guard guard(known().mutex);
  known().handles[made->value_] = made->handle_;
  *value = made->value_;
  return CUDA_SUCCESS;
}

TextureObject::~TextureObject() {
  if (value_ == 0) return;
  remove_texture(value_);
  const std::lock_guard guard(known().mutex);
  known().handles.erase(value_);
}

Ref<TextureObject> TextureObject::find(uint64_t value, bool surface) {
  if (!find_texture(value, surface)) return nullptr;
  uint64_t handle = 0;
  {
    const std::lock_guard guard(known().mutex);
    if (const auto it = known().handles.find(value); it != known().handles.end()) handle = it->second;
  }
  return runtime().handles().find<TextureObject>(handle);
}

CUresult TextureObject::destroy(uint64_t value, bool surface) {
  if (value == 0) return CUDA_SUCCESS;  // as NVIDIA's driver is believed to do: programs destroy null objects
  const Ref<TextureObject> object = find(value, surface);
  if (!object || !runtime().handles().remove<TextureObject>(object->handle_)) return CUDA_ERROR_INVALID_VALUE;
  object->context_->remove_child(object->handle_);
  object->context_->run_when_done(make_ref<DropOp>(object));
  return CUDA_SUCCESS;
}

}  // namespace gpupool::softgpu
