#include "server/worker/arrays.h"

#include <algorithm>
#include <bit>

#include "protocol/cuda/array_bytes.h"

namespace gpupool::worker {
namespace {

constexpr unsigned kRefusedFlags = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
constexpr size_t kMostTexels = size_t{1} << 28;  // along an axis; above what any device takes

size_t aligned(size_t size, size_t to) { return (size + to - 1) / to * to; }

// Larger than what devices lay out: rows of 64 bytes in blocks of up to 128 rows and 32 slices.
uint64_t layout_bytes(const CUDA_ARRAY3D_DESCRIPTOR& shape, unsigned level) {
  const auto halve = [level](size_t size) { return std::max<size_t>(size >> std::min(level, 63u), 1); };
  const auto blocks = [](size_t size, size_t most) { return aligned(size, std::min(std::bit_ceil(size), most)); };
  const bool layered = (shape.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
  const uint64_t row = aligned(halve(shape.Width) * cuda::texel_bytes(shape.Format, shape.NumChannels), 64);
  const uint64_t rows = shape.Height == 0 ? 1 : blocks(halve(shape.Height), 128);
  const uint64_t slices = layered ? shape.Depth : shape.Depth == 0 ? 1 : blocks(halve(shape.Depth), 32);
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(row, rows, &bytes) || __builtin_mul_overflow(bytes, slices, &bytes)) return UINT64_MAX / 64;
  return std::min(bytes, UINT64_MAX / 64);
}

CUresult check(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  if (cuda::is_compound(shape.Format) || (shape.Flags & kRefusedFlags) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  if (cuda::texel_bytes(shape.Format, shape.NumChannels) == 0) return CUDA_ERROR_INVALID_VALUE;
  const bool sane = shape.Width != 0 && shape.Width <= kMostTexels && shape.Height <= kMostTexels && shape.Depth <= kMostTexels;
  return sane ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

template <class Create>
CUresult Arrays::charged(uint64_t bytes, const Create& create) {
  ContextState* const context = contexts_.current();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (made_.size() >= kMaxArrays) return CUDA_ERROR_OUT_OF_MEMORY;
  bytes = aligned(bytes, 64u << 10);  // devices give no less
  if (const CUresult result = memory_.charge(context->device, bytes); result != CUDA_SUCCESS) return result;
  void* array = nullptr;
  bool mipmapped = false;
  const CUresult result = create(*context, bytes, &array, &mipmapped);
  if (result != CUDA_SUCCESS) memory_.uncharge(context->device, bytes);
  else made_[array] = {context, bytes, mipmapped};
  return result;
}

CUresult Arrays::create(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  if (!api_.cuArray3DCreate_v2 || !api_.cuArrayDestroy) return CUDA_ERROR_NOT_SUPPORTED;
  if (const CUresult result = check(shape); result != CUDA_SUCCESS) return result;
  return charged(layout_bytes(shape, 0), [&](ContextState& context, uint64_t bytes, void** made, bool*) {
    CUresult result = memory_.with_room(context.device, bytes, [&] { return api_.cuArray3DCreate_v2(array, &shape); });
    if (result != CUDA_SUCCESS) return result;
    result = scrubber_.clear(*array, shape, context.device);
    if (result != CUDA_SUCCESS) api_.cuArrayDestroy(*array);
    *made = *array;
    return result;
  });
}

CUresult Arrays::create(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR& shape, unsigned levels) {
  if (!api_.cuMipmappedArrayCreate || !api_.cuMipmappedArrayDestroy || !api_.cuMipmappedArrayGetLevel) return CUDA_ERROR_NOT_SUPPORTED;
  if (const CUresult result = check(shape); result != CUDA_SUCCESS) return result;
  const bool layered = (shape.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
  const size_t longest = std::max({shape.Width, shape.Height, layered ? size_t{1} : shape.Depth});
  levels = std::clamp(levels, 1u, static_cast<unsigned>(std::bit_width(longest)));  // as the driver does
  uint64_t bytes = 0;
  for (unsigned level = 0; level < levels; ++level) bytes += layout_bytes(shape, level);
  return charged(bytes, [&](ContextState& context, uint64_t all, void** made, bool* mipmapped) {
    CUresult result = memory_.with_room(context.device, all, [&] { return api_.cuMipmappedArrayCreate(array, &shape, levels); });
    if (result != CUDA_SUCCESS) return result;
    for (unsigned level = 0; level < levels && result == CUDA_SUCCESS; ++level) {
      const auto halve = [level](size_t size) { return size == 0 ? 0 : std::max<size_t>(size >> level, 1); };
      CUDA_ARRAY3D_DESCRIPTOR smaller = shape;
      smaller.Width = halve(shape.Width);
      smaller.Height = halve(shape.Height);
      if (!layered) smaller.Depth = halve(shape.Depth);
      CUarray part = nullptr;
      result = api_.cuMipmappedArrayGetLevel(&part, *array, level);
      if (result == CUDA_SUCCESS) result = scrubber_.clear(part, smaller, context.device);
    }
    if (result != CUDA_SUCCESS) api_.cuMipmappedArrayDestroy(*array);
    *made = *array;
    *mipmapped = true;
    return result;
  });
}

CUresult Arrays::destroy_now(void* array, const Made& made) {
  const CUresult result = made.mipmapped ? api_.cuMipmappedArrayDestroy(static_cast<CUmipmappedArray>(array))
                                         : api_.cuArrayDestroy(static_cast<CUarray>(array));
  memory_.uncharge(made.context->device, made.charged);
  return result;
}

bool Arrays::destroy(void* array, std::function<void(CUresult)> done) {
  const auto found = made_.find(array);
  if (found == made_.end()) return false;
  const Made made = found->second;
  const CUcontext context = made.context->object;
  {
    const std::lock_guard lock(doomed_mutex_);
    doomed_[array] = made;
  }
  const bool begun = waits_.submit(context, [this, array, made, context, done = std::move(done)] {
    make_current(api_, context);
    api_.cuCtxSynchronize();
    {
      const std::lock_guard lock(doomed_mutex_);
      doomed_.erase(array);
    }
    const CUresult result = destroy_now(array, made);
    done(result);
    make_current(api_, nullptr);
  });
  if (begun) {
    made_.erase(found);
  } else {
    const std::lock_guard lock(doomed_mutex_);
    doomed_.erase(array);
  }
  return begun;
}

void Arrays::drop(void* array) {
  if (const auto found = made_.find(array); found != made_.end()) {
    (void)destroy_now(array, found->second);
    made_.erase(found);
  }
}

CUresult Arrays::create_texture(CUtexObject* object, const CUDA_RESOURCE_DESC& resource, const CUDA_TEXTURE_DESC* texture,
                                const CUDA_RESOURCE_VIEW_DESC* view) {
  if (!api_.cuTexObjectCreate || !api_.cuTexObjectDestroy) return CUDA_ERROR_NOT_SUPPORTED;
  uint64_t bytes = 0;
  const auto& res = resource.res;
  const bool linear = resource.resType == CU_RESOURCE_TYPE_LINEAR, rows = resource.resType == CU_RESOURCE_TYPE_PITCH2D;
  if (linear) bytes = res.linear.sizeInBytes;
  if (rows && __builtin_mul_overflow(res.pitch2D.pitchInBytes, res.pitch2D.height, &bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (rows) {  // the last row may end where the texels do
    const uint64_t used = res.pitch2D.width * cuda::texel_bytes(res.pitch2D.format, res.pitch2D.numChannels);
    if (res.pitch2D.width > kMostTexels || used > res.pitch2D.pitchInBytes || res.pitch2D.height == 0) return CUDA_ERROR_INVALID_VALUE;
    bytes -= res.pitch2D.pitchInBytes - used;
  }
  if ((linear || rows) && !memory_.owns(linear ? res.linear.devPtr : res.pitch2D.devPtr, bytes)) return CUDA_ERROR_INVALID_VALUE;
  const ContextState* const context = contexts_.current();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (objects_.size() >= kMaxTextures) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = api_.cuTexObjectCreate(object, &resource, texture, view);
  if (result == CUDA_SUCCESS) objects_[{context, *object}] = false;
  return result;
}

CUresult Arrays::create_surface(CUsurfObject* object, const CUDA_RESOURCE_DESC& resource) {
  if (!api_.cuSurfObjectCreate || !api_.cuSurfObjectDestroy) return CUDA_ERROR_NOT_SUPPORTED;
  if (resource.resType != CU_RESOURCE_TYPE_ARRAY) return CUDA_ERROR_INVALID_VALUE;
  const ContextState* const context = contexts_.current();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (objects_.size() >= kMaxTextures) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = api_.cuSurfObjectCreate(object, &resource);
  if (result == CUDA_SUCCESS) objects_[{context, *object}] = true;
  return result;
}

CUresult Arrays::destroy_texture(CUtexObject object) {
  const auto found = objects_.find({contexts_.current(), object});
  if (found == objects_.end() || found->second) return CUDA_ERROR_INVALID_VALUE;
  objects_.erase(found);
  return api_.cuTexObjectDestroy(object);
}

CUresult Arrays::destroy_surface(CUsurfObject object) {
  const auto found = objects_.find({contexts_.current(), object});
  if (found == objects_.end() || !found->second) return CUDA_ERROR_INVALID_VALUE;
  objects_.erase(found);
  return api_.cuSurfObjectDestroy(object);
}

void Arrays::drop_objects(const ContextState& context) {
  {
    const std::lock_guard lock(doomed_mutex_);
    std::erase_if(doomed_, [&](const auto& doomed) {
      if (doomed.second.context != &context) return false;
      (void)destroy_now(doomed.first, doomed.second);
      return true;
    });
  }
  std::erase_if(references_, [&](const auto& reference) { return reference.second == &context; });
  std::erase_if(objects_, [&](const auto& entry) {
    if (entry.first.first != &context) return false;
    entry.second ? api_.cuSurfObjectDestroy(entry.first.second) : api_.cuTexObjectDestroy(entry.first.second);
    return true;
  });
}

}  // namespace gpupool::worker
