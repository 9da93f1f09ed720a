// Texture and surface objects. Kernels receive an object as a number, so the program gets the device's own
// number. The descriptors are stored here.
#include "client/api/texture.h"

#include "client/memory/array.h"
#include "protocol/driver/exports.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

CUresult check(const CUDA_RESOURCE_DESC& resource, Session& session) {
  Object* object = nullptr;
  if (resource.resType == CU_RESOURCE_TYPE_ARRAY) {
    object = handles().find(Kind::array, cuda::handle_bits(resource.res.array.hArray));
  } else if (resource.resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) {
    object = handles().find(Kind::mipmapped_array, cuda::handle_bits(resource.res.mipmap.hMipmappedArray));
  } else {
    return CUDA_SUCCESS;
  }
  return object && object->session == &session ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

template <class Make>
CUresult create(unsigned long long* object, Texture texture, const Make& make) {
  CallTarget target;
  if (const CUresult result = require_context(&target.session, &target.context); result != CUDA_SUCCESS)
    return result;
  if (const CUresult result = check(texture.resource, *target.session); result != CUDA_SUCCESS) return result;
  const CUresult result = make(target);
  if (result != CUDA_SUCCESS) return result;
  const std::lock_guard lock(textures().mutex);
  textures().all[{target.context->handle, *object}] = std::move(texture);
  return CUDA_SUCCESS;
}

CUresult not_given() {
  CallTarget target;
  const CUresult result = require_context(&target.session, &target.context);
  return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result;
}

template <class Destroy>
CUresult destroy(unsigned long long object, bool surface, const Destroy& forward) {
  return guarded([&]() -> CUresult {
    CallTarget target;
    if (const CUresult result = require_context(&target.session, &target.context); result != CUDA_SUCCESS)
      return result;
    // As NVIDIA's driver is believed to do, because programs destroy objects that were never created.
    if (object == 0) return CUDA_SUCCESS;
    {
      const std::lock_guard lock(textures().mutex);
      const auto known = textures().all.find({target.context->handle, object});
      if (known == textures().all.end() || known->second.surface != surface) return CUDA_ERROR_INVALID_VALUE;
      textures().all.erase(known);
    }
    return forward(target);
  });
}

}  // namespace

CUDA_EXPORT CUresult cuTexObjectCreate(CUtexObject* object, const CUDA_RESOURCE_DESC* resource,
                                       const CUDA_TEXTURE_DESC* reading,
                                       const CUDA_RESOURCE_VIEW_DESC* view) {
  return guarded([&]() -> CUresult {
    if (!object || !resource || !reading) return not_given();
    Texture texture{false, *resource, *reading, view ? std::optional(*view) : std::nullopt};
    return create(object, std::move(texture), [&](const CallTarget& target) {
      return rows::cuTexObjectCreate::at(target, {object, resource, reading, view});
    });
  });
}
CUDA_EXPORT CUresult cuTexObjectDestroy(CUtexObject object) {
  return destroy(object, false,
                 [&](const CallTarget& target) { return rows::cuTexObjectDestroy::at(target, {object}); });
}

CUDA_EXPORT CUresult cuSurfObjectCreate(CUsurfObject* object, const CUDA_RESOURCE_DESC* resource) {
  return guarded([&]() -> CUresult {
    if (!object || !resource) return not_given();
    Texture texture{true, *resource, {}, {}};
    return create(object, std::move(texture), [&](const CallTarget& target) {
      return rows::cuSurfObjectCreate::at(target, {object, resource});
    });
  });
}
CUDA_EXPORT CUresult cuSurfObjectDestroy(CUsurfObject object) {
  return destroy(object, true,
                 [&](const CallTarget& target) { return rows::cuSurfObjectDestroy::at(target, {object}); });
}
