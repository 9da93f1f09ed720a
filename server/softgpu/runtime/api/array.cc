// Arrays and mipmapped arrays.
#include "server/softgpu/runtime/array.h"

#include "server/softgpu/runtime/api/owner_call.h"

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

CUresult create(CUarray* handle, const CUDA_ARRAY3D_DESCRIPTOR& wanted) {
  return call_in_context([&](Context& context) {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Ref<Array> array;
    const CUresult result = Array::create(context, wanted, &array);
    if (result == CUDA_SUCCESS) *handle = make_handle<CUarray>(array->handle());
    return result;
  });
}

template <class Descriptor, class Old>
Descriptor widened(const Old& old) {
  Descriptor wide{};
  wide.Width = old.Width;
  wide.Height = old.Height;
  wide.Format = old.Format;
  wide.NumChannels = old.NumChannels;
  if constexpr (requires { old.Flags; }) {
    wide.Depth = static_cast<decltype(wide.Depth)>(old.Depth);
    wide.Flags = old.Flags;
  }
  return wide;
}

// Fills in a descriptor. The _v1 types get the lower 32 bits of sizes.
template <class Descriptor>
CUresult describe(Descriptor* descriptor, CUarray handle) {
  return call_in_context([&](Context&) {
    if (descriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Ref<Array> array = find<Array>(handle);
    if (!array) return CUDA_ERROR_INVALID_HANDLE;
    const CUDA_ARRAY3D_DESCRIPTOR& shape = array->shape();
    *descriptor = {};
    descriptor->Width = static_cast<decltype(descriptor->Width)>(shape.Width);
    descriptor->Height = static_cast<decltype(descriptor->Height)>(shape.Height);
    descriptor->Format = shape.Format;
    descriptor->NumChannels = shape.NumChannels;
    if constexpr (requires { descriptor->Flags; }) {
      descriptor->Depth = static_cast<decltype(descriptor->Depth)>(shape.Depth);
      descriptor->Flags = shape.Flags;
    }
    return CUDA_SUCCESS;
  });
}

// For queries of planar, sparse or deferred-mapping arrays, which softgpu does not have: every existing array
// gives CUDA_ERROR_INVALID_VALUE.
template <class Kind, class Handle>
CUresult no_answer(const void* answer, Handle handle) {
  return call_in_context([&](Context&) {
    if (answer == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return find<Kind>(handle) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
  });
}

}  // namespace

CUDA_EXPORT CUresult cuArrayCreate_v2(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* wanted) {
  if (wanted == nullptr) return cuArray3DCreate_v2(array, nullptr);
  return create(array, widened<CUDA_ARRAY3D_DESCRIPTOR>(*wanted));
}
CUDA_EXPORT CUresult cuArray3DCreate_v2(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* wanted) {
  if (wanted == nullptr) return call_in_context([](Context&) { return CUDA_ERROR_INVALID_VALUE; });
  return create(array, *wanted);
}

CUDA_EXPORT CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* descriptor, CUarray array) {
  return describe(descriptor, array);
}
CUDA_EXPORT CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* descriptor, CUarray array) {
  return describe(descriptor, array);
}

CUDA_EXPORT CUresult cuArrayDestroy(CUarray handle) {
  Ref<Array> array = find<Array>(handle);
  const auto owner = [&] { return array ? Ref<Context>::share(&array->context()) : Ref<Context>(); };
  return call_in_context_or(owner, [&](Context&) {
    if (!array || array->is_level()) return CUDA_ERROR_INVALID_HANDLE;
    array = runtime().handles().remove<Array>(handle_value(handle));
    if (!array) return CUDA_ERROR_INVALID_HANDLE;  // another thread has destroyed it
    array->destroy();
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuArrayGetPlane(CUarray* plane, CUarray array, unsigned int) {
  return no_answer<Array>(plane, array);
}
#if CUDA_VERSION >= 11010
CUDA_EXPORT CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES* properties, CUarray array) {
  return no_answer<Array>(properties, array);
}
CUDA_EXPORT CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES* properties,
                                                         CUmipmappedArray array) {
  return no_answer<MipmappedArray>(properties, array);
}
#endif
#if CUDA_VERSION >= 11060
CUDA_EXPORT CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* requirements, CUarray array,
                                                  CUdevice device) {
  return runtime().state() == CUDA_SUCCESS && !runtime().device(device)
             ? CUDA_ERROR_INVALID_DEVICE
             : no_answer<Array>(requirements, array);
}
CUDA_EXPORT CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* requirements,
                                                           CUmipmappedArray array, CUdevice device) {
  return runtime().state() == CUDA_SUCCESS && !runtime().device(device)
             ? CUDA_ERROR_INVALID_DEVICE
             : no_answer<MipmappedArray>(requirements, array);
}
#endif

CUDA_EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray* handle, const CUDA_ARRAY3D_DESCRIPTOR* wanted,
                                            unsigned int levels) {
  return call_in_context([&](Context& context) {
    if (handle == nullptr || wanted == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Ref<MipmappedArray> array;
    const CUresult result = MipmappedArray::create(context, *wanted, levels, &array);
    if (result == CUDA_SUCCESS) *handle = make_handle<CUmipmappedArray>(array->handle());
    return result;
  });
}

CUDA_EXPORT CUresult cuMipmappedArrayGetLevel(CUarray* level, CUmipmappedArray handle, unsigned int number) {
  return call_in_context([&](Context&) {
    if (level == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Ref<MipmappedArray> array = find<MipmappedArray>(handle);
    if (!array) return CUDA_ERROR_INVALID_HANDLE;
    if (number >= array->levels().size()) return CUDA_ERROR_INVALID_VALUE;
    *level = make_handle<CUarray>(array->levels()[number]->handle());
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray handle) {
  Ref<MipmappedArray> array = find<MipmappedArray>(handle);
  const auto owner = [&] { return array ? Ref<Context>::share(&array->context()) : Ref<Context>(); };
  return call_in_context_or(owner, [&](Context&) {
    array = runtime().handles().remove<MipmappedArray>(handle_value(handle));
    if (!array) return CUDA_ERROR_INVALID_HANDLE;
    array->destroy();
    return CUDA_SUCCESS;
  });
}
