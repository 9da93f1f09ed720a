#include "server/softgpu/runtime/texture_reference.h"

#include <atomic>

#include "server/softgpu/runtime/runtime.h"

namespace gpupool::softgpu {
namespace {

// Atomic, because kernels may read it at any time.
void put(uint64_t* place, uint64_t value) {
  std::atomic_ref<uint64_t>(*place).store(value, std::memory_order_release);
}

// Replaces the texture at `place`, or removes it if `state` is null.
CUresult replace(uint64_t* place, uint64_t& value, const TextureState* state) {
  const uint64_t next = state ? add_texture(*state) : 0;
  if (state && next == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  if (place) put(place, next);
  if (value != 0) remove_texture(value);
  value = next;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult TextureReference::apply(const Settings& wanted) {
  const Binding& binding = wanted.binding;
  const auto format = texel_format(wanted.format, static_cast<unsigned>(wanted.channels));
  if (!format) return CUDA_ERROR_INVALID_VALUE;
  TextureState state;
  CUresult result = CUDA_SUCCESS;
  bool bound = true;
  switch (binding.kind) {
    case Binding::Kind::none: bound = false; break;
    case Binding::Kind::array: {
      const Ref<Array> array = runtime().handles().find<Array>(binding.handle);
      if (array) set_resource(*array, &state);
      bound = static_cast<bool>(array);  // unbound if the array has been destroyed
      break;
    }
    case Binding::Kind::mipmapped_array: {
      const Ref<MipmappedArray> array = runtime().handles().find<MipmappedArray>(binding.handle);
      if (array) set_resource(*array, &state);
      bound = static_cast<bool>(array);
      break;
    }
    case Binding::Kind::linear:
      result = set_linear_memory(binding.address, *format, binding.bytes, &state);
      break;
    case Binding::Kind::pitch2d:
      result = set_pitch_linear_memory(binding.address, *format, binding.width, binding.height, binding.pitch,
                                       &state);
      break;
  }
  if (result == CUDA_SUCCESS) result = set_sampling(wanted.sampling, &state);
  if (result == CUDA_SUCCESS) result = replace(place_, value_, bound ? &state : nullptr);
  if (result == CUDA_SUCCESS) settings_ = wanted;
  return result;
}

void TextureReference::detach_module() {
  const std::lock_guard guard(mutex_);
  place_ = nullptr;
  replace(nullptr, value_, nullptr);
}

CUresult SurfaceReference::bind(const Array& array) {
  if ((array.shape().Flags & CUDA_ARRAY3D_SURFACE_LDST) == 0 || array.format().bits == 10)
    return CUDA_ERROR_INVALID_VALUE;
  TextureState state;
  state.is_surface = true;
  set_resource(array, &state);
  const std::lock_guard guard(mutex_);
  const CUresult result = replace(place_, value_, &state);
  if (result == CUDA_SUCCESS) array_ = array.handle();
  return result;
}

void SurfaceReference::detach_module() {
  const std::lock_guard guard(mutex_);
  place_ = nullptr;
  replace(nullptr, value_, nullptr);
}

}  // namespace gpupool::softgpu
