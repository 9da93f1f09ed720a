// Texture and surface objects.
#include "server/softgpu/runtime/texture.h"

#include "server/softgpu/runtime/api/call.h"

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

// Calls `describe` with the object. CUDA_ERROR_INVALID_VALUE if there is none, or `answer` is null.
template <class Answer, class Describe>
CUresult ask(Answer* answer, uint64_t value, bool surface, const Describe& describe) {
  return call_in_context([&](Context&) {
    if (answer == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Ref<TextureObject> object = TextureObject::find(value, surface);
    return object ? describe(*object) : CUDA_ERROR_INVALID_VALUE;
  });
}

}  // namespace

CUDA_EXPORT CUresult cuTexObjectCreate(CUtexObject* object, const CUDA_RESOURCE_DESC* resource,
                                       const CUDA_TEXTURE_DESC* texture,
                                       const CUDA_RESOURCE_VIEW_DESC* view) {
  return call_in_context([&](Context& context) {
    if (object == nullptr || resource == nullptr || texture == nullptr) return CUDA_ERROR_INVALID_VALUE;
    uint64_t value = 0;
    const CUresult result = TextureObject::create(context, *resource, texture, view, &value);
    if (result == CUDA_SUCCESS) *object = value;
    return result;
  });
}
// Not part of CUDA, for poold's workers: sets the value of the calling thread's next object, to recreate
// objects of a checkpoint or of another worker's session.
CUDA_EXPORT void softgpu_wish_texture(unsigned long long object) {
  set_next_texture(object);
}
CUDA_EXPORT CUresult cuTexObjectDestroy(CUtexObject object) {
  return call_in_context([&](Context&) { return TextureObject::destroy(object, false); });
}
CUDA_EXPORT CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC* resource, CUtexObject object) {
  return ask(resource, object, false,
             [&](const TextureObject& found) { return *resource = found.resource(), CUDA_SUCCESS; });
}
CUDA_EXPORT CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC* texture, CUtexObject object) {
  return ask(texture, object, false,
             [&](const TextureObject& found) { return *texture = found.texture(), CUDA_SUCCESS; });
}
CUDA_EXPORT CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC* view, CUtexObject object) {
  return ask(view, object, false, [&](const TextureObject& found) {
    if (!found.view()) return CUDA_ERROR_INVALID_VALUE;
    *view = *found.view();
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuSurfObjectCreate(CUsurfObject* object, const CUDA_RESOURCE_DESC* resource) {
  return call_in_context([&](Context& context) {
    if (object == nullptr || resource == nullptr) return CUDA_ERROR_INVALID_VALUE;
    uint64_t value = 0;
    const CUresult result = TextureObject::create(context, *resource, nullptr, nullptr, &value);
    if (result == CUDA_SUCCESS) *object = value;
    return result;
  });
}
CUDA_EXPORT CUresult cuSurfObjectDestroy(CUsurfObject object) {
  return call_in_context([&](Context&) { return TextureObject::destroy(object, true); });
}
CUDA_EXPORT CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC* resource, CUsurfObject object) {
  return ask(resource, object, true,
             [&](const TextureObject& found) { return *resource = found.resource(), CUDA_SUCCESS; });
}
