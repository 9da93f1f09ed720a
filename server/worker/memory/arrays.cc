#include "server/worker/memory/arrays.h"

#include <algorithm>
#include <bit>

#include "protocol/calls/array_bytes.h"

namespace gpupool::worker {
namespace {

constexpr unsigned kRefusedFlags = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
constexpr size_t kMostTexels = size_t{1} << 28;  // along one axis; more than any device supports

size_t aligned(size_t size, size_t to) {
  return (size + to - 1) / to * to;
}

bool is_layered(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  return (shape.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
}

// Upper bound of the bytes that devices use: rows padded to 64 bytes, blocks of up to 128 rows and 32 slices.
uint64_t layout_bytes(const CUDA_ARRAY3D_DESCRIPTOR& shape, unsigned level) {
  const auto halve = [level](size_t size) { return std::max<size_t>(size >> std::min(level, 63u), 1); };
  const auto blocks = [](size_t size, size_t most) {
    return aligned(size, std::min(std::bit_ceil(size), most));
  };
  const bool layered = is_layered(shape);
  const uint64_t row = aligned(halve(shape.Width) * cuda::texel_bytes(shape.Format, shape.NumChannels), 64);
  const uint64_t rows = shape.Height == 0 ? 1 : blocks(halve(shape.Height), 128);
  const uint64_t slices = layered ? shape.Depth : shape.Depth == 0 ? 1 : blocks(halve(shape.Depth), 32);
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(row, rows, &bytes) || __builtin_mul_overflow(bytes, slices, &bytes))
    return UINT64_MAX / 64;
  return std::min(bytes, UINT64_MAX / 64);
}

CUresult check(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  if (cuda::is_unsupported_format(shape.Format) || (shape.Flags & kRefusedFlags) != 0)
    return CUDA_ERROR_NOT_SUPPORTED;
  if (cuda::texel_bytes(shape.Format, shape.NumChannels) == 0) return CUDA_ERROR_INVALID_VALUE;
  const bool sane = shape.Width != 0 && shape.Width <= kMostTexels && shape.Height <= kMostTexels &&
                    shape.Depth <= kMostTexels;
  return sane ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

CUresult Arrays::create(const CUDA_ARRAY3D_DESCRIPTOR& shape, unsigned level_count, uint64_t bytes,
                        void** array) {
  if (!contexts_.current()) return CUDA_ERROR_INVALID_CONTEXT;
  if (states_.size() >= kMaxArrays) return CUDA_ERROR_OUT_OF_MEMORY;
  // Devices allocate memory for arrays in units of at least 64 KiB.
  ArrayState made{&contexts_.current()->owner(), aligned(bytes, 64u << 10), shape, level_count};
  const int device = made.context->device;
  if (const CUresult result = memory_.charge(device, made.charged); result != CUDA_SUCCESS) return result;
  CUresult result = make(made, array);
  if (result == CUDA_SUCCESS) {
    states_[*array] = made;
    result = zero(*array, made);
    if (result != CUDA_SUCCESS) states_.erase(*array), unmake(*array, made);
  }
  if (result != CUDA_SUCCESS) {
    memory_.uncharge(device, made.charged);
    memory_.undo_peak(device);
  }
  return result;
}

// Starts to zero the array; is_dirty() holds until that is done. After an error in zeroing, the array stays
// dirty until the session destroys it.
CUresult Arrays::zero(void* array, const ArrayState& made) {
  std::vector<Scrubber::Part> parts;
  (void)for_each_part(array, made, [&](CUarray part, const CUDA_ARRAY3D_DESCRIPTOR& shape) {
    return parts.push_back({part, shape}), CUDA_SUCCESS;
  });
  dirty_.insert(array);
  const CUresult begun = scrubber_.zero(parts, made.context->device, [this, array](CUresult result) {
    if (result == CUDA_SUCCESS) dirty_.erase(array);
    return result;
  });
  if (begun != CUDA_SUCCESS) dirty_.erase(array);
  return begun;
}

CUresult Arrays::create(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  if (!api_.cuArray3DCreate_v2 || !api_.cuArrayDestroy) return CUDA_ERROR_NOT_SUPPORTED;
  if (const CUresult result = check(shape); result != CUDA_SUCCESS) return result;
  void* made = nullptr;
  const CUresult result = create(shape, 0, layout_bytes(shape, 0), &made);
  if (result == CUDA_SUCCESS) *array = static_cast<CUarray>(made);
  return result;
}

CUresult Arrays::create(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR& shape, unsigned levels) {
  if (!api_.cuMipmappedArrayCreate || !api_.cuMipmappedArrayDestroy || !api_.cuMipmappedArrayGetLevel)
    return CUDA_ERROR_NOT_SUPPORTED;
  if (const CUresult result = check(shape); result != CUDA_SUCCESS) return result;
  const size_t longest = std::max({shape.Width, shape.Height, is_layered(shape) ? size_t{1} : shape.Depth});
  // Clamped as by the driver.
  levels = std::clamp(levels, 1u, static_cast<unsigned>(std::bit_width(longest)));
  uint64_t bytes = 0;
  for (unsigned level = 0; level < levels; ++level) bytes += layout_bytes(shape, level);
  void* made = nullptr;
  const CUresult result = create(shape, levels, bytes, &made);
  if (result == CUDA_SUCCESS) *array = static_cast<CUmipmappedArray>(made);
  return result;
}

CUresult Arrays::make(ArrayState& made, void** array) {
  if (made.level_count == 0) {
    CUarray plain = nullptr;
    const CUresult result = memory_.with_room(made.context->device, made.charged,
                                              [&] { return api_.cuArray3DCreate_v2(&plain, &made.shape); });
    *array = plain;
    return result;
  }
  CUmipmappedArray mipmapped = nullptr;
  CUresult result = memory_.with_room(made.context->device, made.charged, [&] {
    return api_.cuMipmappedArrayCreate(&mipmapped, &made.shape, made.level_count);
  });
  if (result != CUDA_SUCCESS) return result;
  made.levels.assign(made.level_count, nullptr);
  for (unsigned level = 0; level < made.level_count && result == CUDA_SUCCESS; ++level) {
    result = api_.cuMipmappedArrayGetLevel(&made.levels[level], mipmapped, level);
  }
  if (result != CUDA_SUCCESS) api_.cuMipmappedArrayDestroy(mipmapped);
  *array = mipmapped;
  return result;
}

CUresult Arrays::for_each_part(
    void* array, const ArrayState& made,
    const std::function<CUresult(CUarray, const CUDA_ARRAY3D_DESCRIPTOR&)>& visit) {
  if (made.level_count == 0) return visit(static_cast<CUarray>(array), made.shape);
  CUresult result = CUDA_SUCCESS;
  for (unsigned level = 0; level < made.level_count && result == CUDA_SUCCESS; ++level) {
    const auto halve = [level](size_t size) { return size == 0 ? 0 : std::max<size_t>(size >> level, 1); };
    CUDA_ARRAY3D_DESCRIPTOR smaller = made.shape;
    smaller.Width = halve(made.shape.Width);
    smaller.Height = halve(made.shape.Height);
    if (!is_layered(made.shape)) smaller.Depth = halve(made.shape.Depth);
    result = visit(made.levels[level], smaller);
  }
  return result;
}

std::vector<Arrays::Level> Arrays::levels_of(void* array) {
  std::vector<Level> levels;
  const auto found = states_.find(array);
  if (found == states_.end()) return levels;
  (void)for_each_part(array, found->second, [&](CUarray part, const CUDA_ARRAY3D_DESCRIPTOR& shape) {
    levels.push_back({part, shape, found->second.context});
    return CUDA_SUCCESS;
  });
  return levels;
}

CUresult Arrays::level(CUarray* part, CUmipmappedArray whole, unsigned number) const {
  const auto found = states_.find(whole);
  if (found == states_.end() || number >= found->second.levels.size()) return CUDA_ERROR_INVALID_VALUE;
  *part = found->second.levels[number];
  return CUDA_SUCCESS;
}

CUresult Arrays::unmake(void* array, const ArrayState& made) {
  return made.level_count != 0 ? api_.cuMipmappedArrayDestroy(static_cast<CUmipmappedArray>(array))
                               : api_.cuArrayDestroy(static_cast<CUarray>(array));
}

CUresult Arrays::destroy_now(void* array, const ArrayState& made) {
  if (made.away) return CUDA_SUCCESS;
  const CUresult result = unmake(array, made);
  memory_.uncharge(made.context->device, made.charged);
  return result;
}

bool Arrays::destroy(void* array, std::function<void(CUresult)> done) {
  const auto found = states_.find(array);
  if (found == states_.end()) return false;
  const ArrayState made = found->second;
  const CUcontext context = made.context->object;
  {
    const std::lock_guard lock(pending_destruction_mutex_);
    pending_destruction_[array] = made;
  }
  const bool begun =
      waits_.submit(context, "destroying an array", [this, array, made, context, done = std::move(done)] {
        make_current(api_, context);
        api_.cuCtxSynchronize();
        {
          const std::lock_guard lock(pending_destruction_mutex_);
          pending_destruction_.erase(array);
        }
        const CUresult result = destroy_now(array, made);
        done(result);
        make_current(api_, nullptr);
      });
  if (begun) {
    states_.erase(found);
  } else {
    const std::lock_guard lock(pending_destruction_mutex_);
    pending_destruction_.erase(array);
  }
  return begun;
}

void Arrays::drop(void* array) {
  if (is_dirty(array)) scrubber_.finish_all();
  dirty_.erase(array);
  if (const auto found = states_.find(array); found != states_.end()) {
    (void)destroy_now(array, found->second);
    states_.erase(found);
  }
}

CUresult Arrays::create_texture(CUtexObject* object, const CUDA_RESOURCE_DESC& resource,
                                const CUDA_TEXTURE_DESC* texture, const CUDA_RESOURCE_VIEW_DESC* view) {
  if (!api_.cuTexObjectCreate || !api_.cuTexObjectDestroy) return CUDA_ERROR_NOT_SUPPORTED;
  uint64_t bytes = 0;
  const auto& res = resource.res;
  const bool linear = resource.resType == CU_RESOURCE_TYPE_LINEAR,
             rows = resource.resType == CU_RESOURCE_TYPE_PITCH2D;
  if (linear) bytes = res.linear.sizeInBytes;
  if (rows && __builtin_mul_overflow(res.pitch2D.pitchInBytes, res.pitch2D.height, &bytes))
    return CUDA_ERROR_INVALID_VALUE;
  if (rows) {  // the last row may end right behind its last texel
    const uint64_t used = res.pitch2D.width * cuda::texel_bytes(res.pitch2D.format, res.pitch2D.numChannels);
    if (res.pitch2D.width > kMostTexels || used > res.pitch2D.pitchInBytes || res.pitch2D.height == 0)
      return CUDA_ERROR_INVALID_VALUE;
    bytes -= res.pitch2D.pitchInBytes - used;
  }
  if ((linear || rows) && !memory_.owns(linear ? res.linear.devPtr : res.pitch2D.devPtr, bytes))
    return CUDA_ERROR_INVALID_VALUE;
  Description description{resource, *texture, {}};
  if (view) description.view = *view;
  return create_object(std::move(description), false, object);
}

CUresult Arrays::create_surface(CUsurfObject* object, const CUDA_RESOURCE_DESC& resource) {
  if (!api_.cuSurfObjectCreate || !api_.cuSurfObjectDestroy) return CUDA_ERROR_NOT_SUPPORTED;
  if (resource.resType != CU_RESOURCE_TYPE_ARRAY) return CUDA_ERROR_INVALID_VALUE;
  return create_object({resource, {}, {}}, true, object);
}

CUresult Arrays::create_object(Description description, bool surface, unsigned long long* number) {
  ContextState* const context = contexts_.current();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (objects_.size() >= kMaxTextures) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  if (expected_object_ && !objects_.contains({context, surface, *expected_object_})) {
    *number = *expected_object_;
    result = make_object_again(description, surface, *number, kMostOtherTextures);
  }
  if (result != CUDA_SUCCESS) result = make_object(description, surface, number);
  if (result != CUDA_SUCCESS) return result;
  const CUresourcetype kind = description.resource.resType;
  Object& made = objects_[{context, surface, *number}];
  const bool of_array = kind == CU_RESOURCE_TYPE_ARRAY || kind == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
  if (of_array) made.of_array = std::make_shared<Description>(std::move(description));
  return result;
}

CUresult Arrays::make_object(const Description& description, bool surface, unsigned long long* number) {
  return surface ? api_.cuSurfObjectCreate(number, &description.resource)
                 : api_.cuTexObjectCreate(number, &description.resource, &description.texture,
                                          description.view ? &*description.view : nullptr);
}

CUresult Arrays::destroy_object(bool surface, unsigned long long number) {
  return surface ? api_.cuSurfObjectDestroy(number) : api_.cuTexObjectDestroy(number);
}

bool Arrays::forget_object(bool surface, unsigned long long number) {
  return objects_.erase({contexts_.current(), surface, number}) != 0;
}

void Arrays::mark_named_by_reference(void* array) {
  for (auto& [whole, made] : states_) {
    made.named_by_reference |=
        whole == array || std::find(made.levels.begin(), made.levels.end(), array) != made.levels.end();
  }
}

void Arrays::drop_objects(const ContextState& context) {
  {
    const std::lock_guard lock(pending_destruction_mutex_);
    std::erase_if(pending_destruction_, [&](const auto& doomed) {
      if (doomed.second.context != &context) return false;
      (void)destroy_now(doomed.first, doomed.second);
      return true;
    });
  }
  std::erase_if(references_, [&](const auto& reference) { return reference.second == &context; });
  std::erase_if(objects_, [&](const auto& entry) {
    const auto& [where, surface, number] = entry.first;
    if (where != &context) return false;
    if (!entry.second.away) (void)destroy_object(surface, number);
    return true;
  });
}

}  // namespace gpupool::worker
