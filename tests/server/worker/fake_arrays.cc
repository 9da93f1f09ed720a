// The fake driver's arrays, textures, surfaces, stream attributes, tensor maps and device resources. Rejects
// objects that are not alive and counts in FakeDriver::misused the calls in which an unchecking driver would
// have crashed.
#include <cstring>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "protocol/calls/array_bytes.h"
#include "tests/server/worker/fake_driver.h"

namespace gpupool::worker::test {
namespace {

using Lock = std::unique_lock<std::mutex>;

struct FakeArray {
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  std::vector<std::byte> texels{};  // of one level
  std::vector<std::unique_ptr<FakeArray>> levels;
};

CUresult misuse() {
  ++driver().misused;
  return CUDA_ERROR_INVALID_VALUE;
}
// True if the address is in the session's range; whether memory is mapped there is the device's check.
bool belongs(uint64_t address, uint64_t size) {
  const uint64_t offset = address - driver().range_base;
  return offset <= driver().range_size && size <= driver().range_size - offset;
}
template <class Object>
FakeArray* find(Object array) {
  return driver().arrays.contains(array) ? reinterpret_cast<FakeArray*>(array) : nullptr;
}

size_t row_of(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  return shape.Width * cuda::texel_bytes(shape.Format, shape.NumChannels);
}

// Allocates the array's texels, charged to the device memory.
CUresult take_texels(FakeArray& array) {
  const uint64_t bytes = cuda::array_bytes(array.shape);
  if (bytes > FakeDriver::kMemory - driver().memory_used) return CUDA_ERROR_OUT_OF_MEMORY;
  array.texels.assign(bytes, driver().zeroes_memory ? std::byte{} : FakeDriver::kDirt);
  driver().memory_used += bytes;
  driver().arrays.insert(&array);
  return CUDA_SUCCESS;
}
void drop_texels(FakeArray& array) {
  driver().memory_used -= array.texels.size();
  driver().arrays.erase(&array);
}
CUresult create_array(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* shape) {
  const Lock lock(driver().mutex);
  if (row_of(*shape) == 0 || row_of(*shape) * std::max<size_t>(shape->Height, 1) > FakeDriver::kMemory ||
      shape->Depth > 1000) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  auto made = std::make_unique<FakeArray>(FakeArray{*shape});
  const CUresult result = take_texels(*made);
  if (result == CUDA_SUCCESS) *array = reinterpret_cast<CUarray>(made.release());
  return result;
}
CUresult destroy_array(CUarray array) {
  const Lock lock(driver().mutex);
  FakeArray* const known = find(array);
  if (!known) return misuse();
  drop_texels(*known);
  delete known;
  return CUDA_SUCCESS;
}
CUresult create_levels(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR* shape, unsigned levels) {
  CUarray whole = nullptr;
  if (const CUresult result = create_array(&whole, shape); result != CUDA_SUCCESS) return result;
  const Lock lock(driver().mutex);
  FakeArray& made = *find(whole);
  for (unsigned i = 0; i < levels; ++i) {
    const auto smaller = [i](size_t size) { return size == 0 ? 0 : std::max<size_t>(size >> i, 1); };
    made.levels.push_back(std::make_unique<FakeArray>(FakeArray{*shape}));
    CUDA_ARRAY3D_DESCRIPTOR& level = made.levels.back()->shape;
    level.Width = smaller(level.Width);
    level.Height = smaller(level.Height);
    (void)take_texels(*made.levels.back());
  }
  *array = reinterpret_cast<CUmipmappedArray>(whole);
  return CUDA_SUCCESS;
}
CUresult destroy_levels(CUmipmappedArray array) {
  {
    const Lock lock(driver().mutex);
    FakeArray* const known = find(array);
    if (!known) return misuse();
    for (const auto& level : known->levels) drop_texels(*level);
  }
  return destroy_array(reinterpret_cast<CUarray>(array));
}
CUresult get_level(CUarray* level, CUmipmappedArray array, unsigned number) {
  const Lock lock(driver().mutex);
  FakeArray* const known = find(array);
  if (!known || known->levels.empty()) return misuse();
  if (number >= known->levels.size()) return CUDA_ERROR_INVALID_VALUE;
  *level = reinterpret_cast<CUarray>(known->levels[number].get());
  return CUDA_SUCCESS;
}
CUresult get_plane(CUarray*, CUarray array, unsigned) {
  const Lock lock(driver().mutex);
  return find(array) ? CUDA_ERROR_INVALID_VALUE : misuse();
}
CUresult sparse(CUDA_ARRAY_SPARSE_PROPERTIES*, CUarray array) {
  const Lock lock(driver().mutex);
  return find(array) ? CUDA_ERROR_INVALID_VALUE : misuse();
}

bool is_there(const CUDA_RESOURCE_DESC& resource) {
  switch (resource.resType) {
    case CU_RESOURCE_TYPE_ARRAY: return find(resource.res.array.hArray);
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: return find(resource.res.mipmap.hMipmappedArray);
    case CU_RESOURCE_TYPE_LINEAR: return belongs(resource.res.linear.devPtr, resource.res.linear.sizeInBytes);
    case CU_RESOURCE_TYPE_PITCH2D: {
      const auto& rows = resource.res.pitch2D;
      return rows.height != 0 &&
             belongs(rows.devPtr, (rows.height - 1) * rows.pitchInBytes +
                                      rows.width * cuda::texel_bytes(rows.format, rows.numChannels));
    }
    default: return false;
  }
}
void* array_of(const CUDA_RESOURCE_DESC& resource) {
  return resource.resType == CU_RESOURCE_TYPE_ARRAY ? resource.res.array.hArray
         : resource.resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY
             ? static_cast<void*>(resource.res.mipmap.hMipmappedArray)
             : nullptr;
}
CUresult create_texture(CUtexObject* object, const CUDA_RESOURCE_DESC* resource, const CUDA_TEXTURE_DESC*,
                        const CUDA_RESOURCE_VIEW_DESC*) {
  const Lock lock(driver().mutex);
  if (!is_there(*resource)) return misuse();
  constexpr unsigned long long kFirst = 0x7e0000;
  *object = driver().driver_reuses_handles ? kFirst : kFirst + driver().next_handle++;
  while (driver().textures.contains(*object)) ++*object;
  driver().textures[*object] = array_of(*resource);
  return CUDA_SUCCESS;
}
CUresult create_surface(CUsurfObject* object, const CUDA_RESOURCE_DESC* resource) {
  return create_texture(object, resource, nullptr, nullptr);
}
CUresult destroy_texture(CUtexObject object) {
  const Lock lock(driver().mutex);
  return driver().textures.erase(object) == 1 ? CUDA_SUCCESS : misuse();
}

// One end of a copy: its first byte and the distances of rows and slices in bytes. `at` is null if there is
// nothing to read or write.
struct End {
  std::byte* at = nullptr;
  size_t pitch = 0, slice = 0;
};
bool find_end(CUmemorytype type, CUarray array, uint64_t address, size_t x, size_t y, size_t z, size_t pitch,
              size_t height, const CUDA_MEMCPY3D& c, End* end) {
  if (type == CU_MEMORYTYPE_ARRAY) {
    FakeArray* const known = find(array);
    if (!known) return false;
    end->pitch = row_of(known->shape);
    end->slice = end->pitch * std::max<size_t>(known->shape.Height, 1);
    const bool fits = x + c.WidthInBytes <= end->pitch && (y + c.Height) * end->pitch <= end->slice &&
                      (z + c.Depth) * end->slice <= known->texels.size();
    if (fits) end->at = known->texels.data() + z * end->slice + y * end->pitch + x;
    return true;
  }
  const uint64_t first = (z * height + y) * pitch + x,
                 span = ((z + c.Depth - 1) * height + y + c.Height - 1) * pitch + x + c.WidthInBytes;
  end->pitch = pitch;
  end->slice = pitch * height;
  if (type == CU_MEMORYTYPE_HOST || is_mapped(address, span))
    end->at = reinterpret_cast<std::byte*>(address + first);
  return type == CU_MEMORYTYPE_HOST ? address != 0 : type == CU_MEMORYTYPE_DEVICE && belongs(address, span);
}
// Copies between arrays, device memory, and host memory, which only the worker itself names.
CUresult copy(const CUDA_MEMCPY3D* c, CUstream stream) {
  Lock lock(driver().mutex);
  const bool from_host = c->srcMemoryType == CU_MEMORYTYPE_HOST,
             to_host = c->dstMemoryType == CU_MEMORYTYPE_HOST;
  if ((from_host && c->dstMemoryType != CU_MEMORYTYPE_ARRAY) ||
      (to_host && c->srcMemoryType != CU_MEMORYTYPE_ARRAY))
    return misuse();
  if (from_host != (c->srcHost != nullptr) || to_host != (c->dstHost != nullptr) || c->reserved0 ||
      c->reserved1)
    return misuse();
  End from, to;
  const uint64_t source = from_host ? reinterpret_cast<uint64_t>(c->srcHost) : c->srcDevice;
  const uint64_t target = to_host ? reinterpret_cast<uint64_t>(c->dstHost) : c->dstDevice;
  if (!find_end(c->srcMemoryType, c->srcArray, source, c->srcXInBytes, c->srcY, c->srcZ, c->srcPitch,
                c->srcHeight, *c, &from) ||
      !find_end(c->dstMemoryType, c->dstArray, target, c->dstXInBytes, c->dstY, c->dstZ, c->dstPitch,
                c->dstHeight, *c, &to)) {
    return misuse();
  }
  lock.unlock();
  return enqueue(stream, [from, to, width = c->WidthInBytes, height = c->Height, depth = c->Depth] {
    for (size_t row = 0; from.at && to.at && row < height * depth; ++row) {
      const size_t y = row % height, z = row / height;
      std::memcpy(to.at + z * to.slice + y * to.pitch, from.at + z * from.slice + y * from.pitch, width);
    }
    return true;
  });
}

CUresult create_reference(CUtexref* reference) {
  const Lock lock(driver().mutex);
  *reference = reinterpret_cast<CUtexref>(0xe0000 + 16 * driver().next_handle++);
  driver().references.insert(*reference);
  return CUDA_SUCCESS;
}
CUresult destroy_reference(CUtexref reference) {
  const Lock lock(driver().mutex);
  // References that belong to modules must not be destroyed by programs.
  return reinterpret_cast<uintptr_t>(reference) < 0xf00000 && driver().references.erase(reference) == 1
             ? CUDA_SUCCESS
             : misuse();
}
CUresult module_reference(CUtexref* reference, CUmodule module, const char*) {
  const Lock lock(driver().mutex);
  if (!driver().modules.contains(module)) return misuse();
  *reference = reinterpret_cast<CUtexref>(0xf00000 + 16 * driver().next_handle++);
  driver().references.insert(*reference);
  return CUDA_SUCCESS;
}
CUresult set_array(CUtexref reference, CUarray array, unsigned) {
  const Lock lock(driver().mutex);
  return driver().references.contains(reference) && find(array) ? CUDA_SUCCESS : misuse();
}
CUresult set_address(size_t*, CUtexref reference, CUdeviceptr address, size_t bytes) {
  const Lock lock(driver().mutex);
  return driver().references.contains(reference) && (address == 0 || belongs(address, bytes)) ? CUDA_SUCCESS
                                                                                              : misuse();
}
CUresult set_rows(CUtexref reference, const CUDA_ARRAY_DESCRIPTOR* shape, CUdeviceptr address, size_t pitch) {
  const Lock lock(driver().mutex);
  const size_t row = shape->Width * cuda::texel_bytes(shape->Format, shape->NumChannels);
  const bool there = shape->Height == 0 || belongs(address, (shape->Height - 1) * pitch + row);
  return driver().references.contains(reference) && there ? CUDA_SUCCESS : misuse();
}
CUresult set_border(CUtexref reference, float*) {
  const Lock lock(driver().mutex);
  return driver().references.contains(reference) ? CUDA_SUCCESS : misuse();
}

CUresult set_attribute(CUstream, CUstreamAttrID attribute, const CUstreamAttrValue* value) {
  const Lock lock(driver().mutex);
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  switch (static_cast<unsigned>(attribute)) {
    case 1: {
      const auto& window = value->accessPolicyWindow;
      return window.num_bytes == 0 || belongs(reinterpret_cast<uintptr_t>(window.base_ptr), window.num_bytes)
                 ? CUDA_SUCCESS
                 : misuse();
    }
    case 3:
    case 8:
    case 9:
    case 10: return CUDA_SUCCESS;
    default: return misuse();
  }
}

#if CUDA_VERSION >= 12000
CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank, void*, const cuuint64_t* dim,
                      const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* element_strides,
                      CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                      CUtensorMapFloatOOBfill) {
  if (!map || !dim || (!strides && rank > 1) || !box || !element_strides || rank == 0) return misuse();
  uint64_t sum = 0;  // reads everything that the arguments promise
  for (cuuint32_t i = 0; i < rank; ++i)
    sum += dim[i] + box[i] + element_strides[i] + (i + 1 < rank ? strides[i] : 0);
  map->opaque[0] = sum;
  return CUDA_SUCCESS;
}
#endif

#if CUDA_VERSION >= 12040
CUresult device_resource(CUdevice, CUdevResource* resource, CUdevResourceType type) {
  resource->type = type;
  resource->sm.smCount = 8;
  return CUDA_SUCCESS;
}
CUresult context_resource(CUcontext, CUdevResource* resource, CUdevResourceType type) {
  return device_resource(0, resource, type);
}
CUresult split(CUdevResource* parts, unsigned* count, const CUdevResource* whole, CUdevResource* remaining,
               unsigned, unsigned least) {
  if (whole->type != CU_DEV_RESOURCE_TYPE_SM || whole->sm.smCount > 8) return misuse();
  *count = std::min(*count, whole->sm.smCount / std::max(least, 1u));
  for (unsigned i = 0; parts && i < *count; ++i) parts[i] = *whole, parts[i].sm.smCount = std::max(least, 1u);
  if (remaining) *remaining = *whole;
  return CUDA_SUCCESS;
}
CUresult describe(CUdevResourceDesc* description, CUdevResource* resources, unsigned count) {
  for (unsigned i = 0; i < count; ++i) {
    if (resources[i].type != CU_DEV_RESOURCE_TYPE_SM) return misuse();
  }
  *description = reinterpret_cast<CUdevResourceDesc>(0x5e5c);
  return CUDA_SUCCESS;
}
#endif

const std::unordered_map<std::string_view, void*> kArraySymbols = {
    FAKE(cuArray3DCreate_v2, create_array),        FAKE(cuArrayDestroy, destroy_array),
    FAKE(cuMipmappedArrayCreate, create_levels),   FAKE(cuMipmappedArrayDestroy, destroy_levels),
    FAKE(cuMipmappedArrayGetLevel, get_level),     FAKE(cuArrayGetPlane, get_plane),
    FAKE(cuArrayGetSparseProperties, sparse),      FAKE(cuTexObjectCreate, create_texture),
    FAKE(cuTexObjectDestroy, destroy_texture),     FAKE(cuSurfObjectCreate, create_surface),
    FAKE(cuSurfObjectDestroy, destroy_texture),    FAKE(cuMemcpy3DAsync_v2, copy),
    FAKE(cuTexRefCreate, create_reference),        FAKE(cuTexRefDestroy, destroy_reference),
    FAKE(cuModuleGetTexRef, module_reference),     FAKE(cuTexRefSetArray, set_array),
    FAKE(cuTexRefSetAddress_v2, set_address),      FAKE(cuTexRefSetAddress2D_v3, set_rows),
    FAKE(cuTexRefSetBorderColor, set_border),      FAKE(cuStreamSetAttribute, set_attribute),
#if CUDA_VERSION >= 12000
    FAKE(cuTensorMapEncodeTiled, encode_tiled),
#endif
#if CUDA_VERSION >= 12040
    FAKE(cuDeviceGetDevResource, device_resource), FAKE(cuCtxGetDevResource, context_resource),
    FAKE(cuDevSmResourceSplitByCount, split),      FAKE(cuDevResourceGenerateDesc, describe),
#endif
};

}  // namespace

void* fake_array_symbol(std::string_view name) {
  const auto found = kArraySymbols.find(name);
  return found == kArraySymbols.end() ? nullptr : found->second;
}

}  // namespace gpupool::worker::test
