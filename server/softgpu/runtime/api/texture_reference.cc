// Texture and surface references.
#include "server/softgpu/runtime/texture_reference.h"

#include "server/softgpu/runtime/api/call.h"
#include "server/softgpu/runtime/device.h"
#include "server/softgpu/runtime/module.h"

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

using Settings = TextureReference::Settings;
using Binding = TextureReference::Binding;

template <class Body>
CUresult with(CUtexref handle, const Body& body) {
  return call_in_context([&](Context&) {
    const Ref<TextureReference> reference = find<TextureReference>(handle);
    return reference ? body(*reference) : CUDA_ERROR_INVALID_HANDLE;
  });
}
template <class Change>
CUresult change(CUtexref handle, bool valid, const Change& apply) {
  return with(handle, [&](TextureReference& reference) {
    return valid ? reference.set(apply) : CUDA_ERROR_INVALID_VALUE;
  });
}
template <class Answer, class Get>
CUresult ask(Answer* answer, CUtexref handle, const Get& get) {
  return with(handle, [&](TextureReference& reference) {
    if (answer == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *answer = static_cast<Answer>(get(reference.settings()));
    return CUDA_SUCCESS;
  });
}

bool filter(CUfilter_mode mode) {
  return mode == CU_TR_FILTER_MODE_POINT || mode == CU_TR_FILTER_MODE_LINEAR;
}

template <class Reference, class Handle>
CUresult get(Handle* reference, CUmodule handle, const char* name) {
  return call_in_context([&](Context&) {
    if (reference == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Ref<Module> module = find<Module>(handle);
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    Ref<Reference> found;
    const CUresult result = module->reference(name, &found);
    if (result == CUDA_SUCCESS) *reference = make_handle<Handle>(found->handle);
    return result;
  });
}

}  // namespace

CUDA_EXPORT CUresult cuModuleGetTexRef(CUtexref* reference, CUmodule module, const char* name) {
  return get<TextureReference>(reference, module, name);
}
CUDA_EXPORT CUresult cuModuleGetSurfRef(CUsurfref* reference, CUmodule module, const char* name) {
  return get<SurfaceReference>(reference, module, name);
}
CUDA_EXPORT CUresult cuTexRefCreate(CUtexref* handle) {
  return call_in_context([&](Context& context) {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Ref<TextureReference> reference = make_ref<TextureReference>(nullptr);
    reference->handle = runtime().handles().add(reference);
    if (reference->handle == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    context.root().add_child(reference->handle);
    *handle = make_handle<CUtexref>(reference->handle);
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuTexRefDestroy(CUtexref handle) {
  return call_in_context([&](Context& context) {
    const Ref<TextureReference> reference = find<TextureReference>(handle);
    if (!reference || reference->of_module()) return CUDA_ERROR_INVALID_HANDLE;
    context.root().remove_child(handle_value(handle));
    runtime().handles().remove<TextureReference>(handle_value(handle));
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuParamSetTexRef(CUfunction function, int unit, CUtexref reference) {
  return with(reference, [&](TextureReference&) {
    if (!find<Function>(function)) return CUDA_ERROR_INVALID_HANDLE;
    return unit == CU_PARAM_TR_DEFAULT ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUDA_EXPORT CUresult cuTexRefSetArray(CUtexref reference, CUarray handle, unsigned int flags) {
  const Ref<Array> array = find<Array>(handle);
  if (!array) return with(reference, [](TextureReference&) { return CUDA_ERROR_INVALID_HANDLE; });
  return change(reference, flags == CU_TRSA_OVERRIDE_FORMAT, [&](Settings& s) {
    s.binding = {};
    s.binding.kind = Binding::Kind::array;
    s.binding.handle = array->handle();
    s.format = array->shape().Format;
    s.channels = static_cast<int>(array->shape().NumChannels);
  });
}
CUDA_EXPORT CUresult cuTexRefSetMipmappedArray(CUtexref reference, CUmipmappedArray handle,
                                               unsigned int flags) {
  const Ref<MipmappedArray> array = find<MipmappedArray>(handle);
  if (!array) return with(reference, [](TextureReference&) { return CUDA_ERROR_INVALID_HANDLE; });
  return change(reference, flags == CU_TRSA_OVERRIDE_FORMAT, [&](Settings& s) {
    s.binding = {};
    s.binding.kind = Binding::Kind::mipmapped_array;
    s.binding.handle = array->handle();
    s.format = array->shape().Format;
    s.channels = static_cast<int>(array->shape().NumChannels);
  });
}
CUDA_EXPORT CUresult cuTexRefSetAddress_v2(size_t* offset, CUtexref reference, CUdeviceptr address,
                                           size_t bytes) {
  return with(reference, [&](TextureReference& bound) {
    const uint64_t beyond = address % limits::kTextureAlignment;
    if (offset == nullptr && beyond != 0) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = bound.set([&](Settings& s) {
      s.binding = {};
      if (address == 0) return;
      s.binding.kind = Binding::Kind::linear;
      s.binding.address = address - beyond;
      s.binding.bytes = bytes + beyond;
    });
    if (result == CUDA_SUCCESS && offset != nullptr) *offset = beyond;
    return result;
  });
}
CUDA_EXPORT CUresult cuTexRefSetAddress2D_v3(CUtexref reference, const CUDA_ARRAY_DESCRIPTOR* shape,
                                             CUdeviceptr address, size_t pitch) {
  return change(reference, shape != nullptr, [&](Settings& s) {
    s.binding = {};
    s.binding.kind = Binding::Kind::pitch2d;
    s.binding.address = address;
    s.binding.width = shape->Width;
    s.binding.height = shape->Height;
    s.binding.pitch = pitch;
    s.format = shape->Format;
    s.channels = static_cast<int>(shape->NumChannels);
  });
}
CUDA_EXPORT CUresult cuTexRefSetFormat(CUtexref reference, CUarray_format format, int channels) {
  return change(reference, texel_format(format, static_cast<unsigned>(channels)).has_value(),
                [&](Settings& s) {
                  s.format = format;
                  s.channels = channels;
                });
}
CUDA_EXPORT CUresult cuTexRefSetAddressMode(CUtexref reference, int axis, CUaddress_mode mode) {
  const bool valid = axis >= 0 && axis < 3 && static_cast<unsigned>(mode) <= CU_TR_ADDRESS_MODE_BORDER;
  return change(reference, valid, [&](Settings& s) { s.sampling.address_mode[axis] = mode; });
}
CUDA_EXPORT CUresult cuTexRefSetFilterMode(CUtexref reference, CUfilter_mode mode) {
  return change(reference, filter(mode), [&](Settings& s) { s.sampling.filter = mode; });
}
CUDA_EXPORT CUresult cuTexRefSetMipmapFilterMode(CUtexref reference, CUfilter_mode mode) {
  return change(reference, filter(mode), [&](Settings& s) { s.sampling.level_filter = mode; });
}
CUDA_EXPORT CUresult cuTexRefSetMipmapLevelBias(CUtexref reference, float bias) {
  return change(reference, true, [&](Settings& s) { s.sampling.bias = bias; });
}
CUDA_EXPORT CUresult cuTexRefSetMipmapLevelClamp(CUtexref reference, float least, float most) {
  return change(reference, true,
                [&](Settings& s) { s.sampling.min_level = least, s.sampling.max_level = most; });
}
CUDA_EXPORT CUresult cuTexRefSetMaxAnisotropy(CUtexref reference, unsigned int most) {
  return change(reference, true, [&](Settings& s) { s.anisotropy = most; });
}
CUDA_EXPORT CUresult cuTexRefSetBorderColor(CUtexref reference, float* color) {
  return change(reference, color != nullptr, [&](Settings& s) {
    for (int channel = 0; channel < 4; ++channel) s.sampling.border[channel] = color[channel];
  });
}
CUDA_EXPORT CUresult cuTexRefSetFlags(CUtexref reference, unsigned int flags) {
  return change(reference, true, [&](Settings& s) { s.sampling.flags = flags; });
}

CUDA_EXPORT CUresult cuTexRefGetAddress(CUdeviceptr_v1* address, CUtexref reference) {
  return ask(address, reference, [](const Settings& s) { return s.binding.address; });
}
CUDA_EXPORT CUresult cuTexRefGetAddress_v2(CUdeviceptr* address, CUtexref reference) {
  return with(reference, [&](TextureReference& found) {
    const Settings s = found.settings();
    if (address == nullptr || s.binding.address == 0) return CUDA_ERROR_INVALID_VALUE;
    *address = s.binding.address;
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuTexRefGetArray(CUarray* array, CUtexref reference) {
  return with(reference, [&](TextureReference& found) {
    const Settings s = found.settings();
    if (array == nullptr || s.binding.kind != Binding::Kind::array) return CUDA_ERROR_INVALID_VALUE;
    *array = make_handle<CUarray>(s.binding.handle);
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuTexRefGetMipmappedArray(CUmipmappedArray* array, CUtexref reference) {
  return with(reference, [&](TextureReference& found) {
    const Settings s = found.settings();
    if (array == nullptr || s.binding.kind != Binding::Kind::mipmapped_array) return CUDA_ERROR_INVALID_VALUE;
    *array = make_handle<CUmipmappedArray>(s.binding.handle);
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuTexRefGetAddressMode(CUaddress_mode* mode, CUtexref reference, int axis) {
  if (axis < 0 || axis > 2) mode = nullptr;
  return ask(mode, reference, [&](const Settings& s) { return s.sampling.address_mode[axis]; });
}
CUDA_EXPORT CUresult cuTexRefGetFilterMode(CUfilter_mode* mode, CUtexref reference) {
  return ask(mode, reference, [](const Settings& s) { return s.sampling.filter; });
}
CUDA_EXPORT CUresult cuTexRefGetFormat(CUarray_format* format, int* channels, CUtexref reference) {
  return with(reference, [&](TextureReference& found) {
    const Settings s = found.settings();
    if (format != nullptr) *format = s.format;
    if (channels != nullptr) *channels = s.channels;
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuTexRefGetMipmapFilterMode(CUfilter_mode* mode, CUtexref reference) {
  return ask(mode, reference, [](const Settings& s) { return s.sampling.level_filter; });
}
CUDA_EXPORT CUresult cuTexRefGetMipmapLevelBias(float* bias, CUtexref reference) {
  return ask(bias, reference, [](const Settings& s) { return s.sampling.bias; });
}
CUDA_EXPORT CUresult cuTexRefGetMipmapLevelClamp(float* least, float* most, CUtexref reference) {
  return with(reference, [&](TextureReference& found) {
    const Settings s = found.settings();
    if (least == nullptr || most == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *least = s.sampling.min_level;
    *most = s.sampling.max_level;
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuTexRefGetMaxAnisotropy(int* most, CUtexref reference) {
  return ask(most, reference, [](const Settings& s) { return s.anisotropy; });
}
CUDA_EXPORT CUresult cuTexRefGetBorderColor(float* color, CUtexref reference) {
  return with(reference, [&](TextureReference& found) {
    if (color == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Settings s = found.settings();
    for (int channel = 0; channel < 4; ++channel) color[channel] = s.sampling.border[channel];
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuTexRefGetFlags(unsigned int* flags, CUtexref reference) {
  return ask(flags, reference, [](const Settings& s) { return s.sampling.flags; });
}

CUDA_EXPORT CUresult cuSurfRefSetArray(CUsurfref handle, CUarray array_handle, unsigned int flags) {
  return call_in_context([&](Context&) {
    const Ref<SurfaceReference> reference = find<SurfaceReference>(handle);
    const Ref<Array> array = find<Array>(array_handle);
    if (!reference || !array) return CUDA_ERROR_INVALID_HANDLE;
    return flags == 0 ? reference->bind(*array) : CUDA_ERROR_INVALID_VALUE;
  });
}
CUDA_EXPORT CUresult cuSurfRefGetArray(CUarray* array, CUsurfref handle) {
  return call_in_context([&](Context&) {
    const Ref<SurfaceReference> reference = find<SurfaceReference>(handle);
    if (!reference) return CUDA_ERROR_INVALID_HANDLE;
    if (array == nullptr || reference->array() == 0) return CUDA_ERROR_INVALID_VALUE;
    *array = make_handle<CUarray>(reference->array());
    return CUDA_SUCCESS;
  });
}
