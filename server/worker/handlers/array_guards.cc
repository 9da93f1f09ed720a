// Wrappers (guards.h) for calls that create arrays, textures and surfaces, and for copies that name arrays.
#include "server/worker/handlers/array_guards.h"

#include "protocol/calls/array_bytes.h"
#include "protocol/calls/codec.h"
#include "server/worker/session/session.h"

namespace gpupool::worker::guards {
namespace {

using cuda::Kind;

// Replaces the client's handle, which the client sends in place of an object, by the driver's object.
template <class Object>
bool resolve(Kind kind, Object& object) {
  const auto found = t_session->table.resolve(kind, cuda::handle_bits(object));
  if (found) object = static_cast<Object>(*found);
  return found.has_value();
}

// Copies the fields of the given resource type only, with handles resolved.
CUresult resolve(const CUDA_RESOURCE_DESC& asked, CUDA_RESOURCE_DESC* resource) {
  *resource = {};
  resource->resType = asked.resType;
  resource->flags = asked.flags;
  switch (asked.resType) {
    case CU_RESOURCE_TYPE_ARRAY:
      resource->res.array = asked.res.array;
      return resolve(Kind::array, resource->res.array.hArray) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
      resource->res.mipmap = asked.res.mipmap;
      return resolve(Kind::mipmapped_array, resource->res.mipmap.hMipmappedArray) ? CUDA_SUCCESS
                                                                                  : CUDA_ERROR_INVALID_HANDLE;
    case CU_RESOURCE_TYPE_LINEAR: resource->res.linear = asked.res.linear; return CUDA_SUCCESS;
    case CU_RESOURCE_TYPE_PITCH2D: resource->res.pitch2D = asked.res.pitch2D; return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult destroy_object(bool surface, unsigned long long number) {
  Arrays& arrays = t_session->arrays;
  if (!arrays.forget_object(surface, number)) return CUDA_ERROR_INVALID_VALUE;
  return unload_after_kept_commands(
      t_session->contexts.current()->object, PostponedUnloads::kNoHandle,
      [&arrays, surface, number] { return arrays.destroy_object(surface, number); });
}

}  // namespace

CUresult create_array(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* shape) {
  return array && shape ? t_session->arrays.create(array, *shape) : CUDA_ERROR_INVALID_VALUE;
}
CUresult create_mipmapped_array(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR* shape,
                                unsigned levels) {
  return array && shape ? t_session->arrays.create(array, *shape, levels) : CUDA_ERROR_INVALID_VALUE;
}

CUresult create_texture(CUtexObject* object, const CUDA_RESOURCE_DESC* asked,
                        const CUDA_TEXTURE_DESC* texture, const CUDA_RESOURCE_VIEW_DESC* view) {
  if (!object || !asked || !texture) return CUDA_ERROR_INVALID_VALUE;
  CUDA_RESOURCE_DESC resource;
  const CUresult result = resolve(*asked, &resource);
  return result == CUDA_SUCCESS ? t_session->arrays.create_texture(object, resource, texture, view) : result;
}
CUresult destroy_texture(CUtexObject object) {
  return destroy_object(false, object);
}
CUresult create_surface(CUsurfObject* object, const CUDA_RESOURCE_DESC* asked) {
  if (!object || !asked) return CUDA_ERROR_INVALID_VALUE;
  CUDA_RESOURCE_DESC resource;
  const CUresult result = resolve(*asked, &resource);
  return result == CUDA_SUCCESS ? t_session->arrays.create_surface(object, resource) : result;
}
CUresult destroy_surface(CUsurfObject object) {
  return destroy_object(true, object);
}

CUresult create_reference(CUtexref* reference) {
  if (!reference) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = t_session->guarded.cuTexRefCreate(reference);
  if (result == CUDA_SUCCESS) t_session->arrays.reference_made(*reference);
  return result;
}
// A reference obtained from a module is destroyed with the module only.
CUresult destroy_reference(CUtexref reference) {
  return t_session->arrays.forget_reference(reference) ? t_session->guarded.cuTexRefDestroy(reference)
                                                       : CUDA_ERROR_INVALID_HANDLE;
}
template <class Bind, class Reference, class Array>
CUresult bind(Bind bind, Reference reference, Array array, unsigned flags) {
  const CUresult result = bind(reference, array, flags);
  if (result == CUDA_SUCCESS) t_session->arrays.mark_named_by_reference(array);
  return result;
}
CUresult bind_array(CUtexref reference, CUarray array, unsigned flags) {
  return bind(t_session->guarded.cuTexRefSetArray, reference, array, flags);
}
CUresult bind_mipmapped_array(CUtexref reference, CUmipmappedArray array, unsigned flags) {
  return bind(t_session->guarded.cuTexRefSetMipmappedArray, reference, array, flags);
}
CUresult bind_surface(CUsurfref reference, CUarray array, unsigned flags) {
  return bind(t_session->guarded.cuSurfRefSetArray, reference, array, flags);
}
CUresult bind_rows(CUtexref reference, const CUDA_ARRAY_DESCRIPTOR* shape, CUdeviceptr address,
                   size_t pitch) {
  if (!shape) return CUDA_ERROR_INVALID_VALUE;
  uint64_t bytes = 0, row = 0;
  const bool sane = !__builtin_mul_overflow(shape->Height, pitch, &bytes) &&
                    !__builtin_mul_overflow(
                        shape->Width, uint64_t{cuda::texel_bytes(shape->Format, shape->NumChannels)}, &row) &&
                    row <= pitch;
  if (!sane || !t_session->memory.owns(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return t_session->guarded.cuTexRefSetAddress2D_v3(reference, shape, address, pitch);
}

bool resolve_array(CUarray& array) {
  return resolve(Kind::array, array);
}

}  // namespace gpupool::worker::guards
