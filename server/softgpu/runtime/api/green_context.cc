// Green contexts and device resources. Multiprocessors are the only type of resource; a partition can have
// any number.
#include "server/softgpu/runtime/green_context.h"

#include <algorithm>
#include <cstring>

#include "server/softgpu/runtime/api/call.h"

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

#if CUDA_VERSION >= 12040
namespace {

// Stored in _internal_padding of a CUdevResource. Programs can overwrite it, so read() checks it.
struct Origin {
  uint64_t resources;  // handle
  uint64_t split;      // number of the split that made this; 0: none
};
static_assert(sizeof(Origin) <= sizeof(CUdevResource::_internal_padding));

std::atomic<uint64_t> next_split{1};

void describe(const MultiprocessorSet& resources, uint64_t split, CUdevResource* out) {
  *out = CUdevResource{};
  out->type = CU_DEV_RESOURCE_TYPE_SM;
  const Origin origin{resources.handle(), split};
  std::memcpy(out->_internal_padding, &origin, sizeof origin);
  out->sm.smCount = resources.count();
#if CUDA_VERSION >= 13000
  out->sm.minSmPartitionSize = 1;
  out->sm.smCoscheduledAlignment = 1;
#endif
}

CUresult describe(Device& device, const Multiprocessors& multiprocessors, uint64_t split,
                  CUdevResource* out) {
  const Ref<MultiprocessorSet> resources = MultiprocessorSet::of(device, multiprocessors);
  if (!resources) return CUDA_ERROR_OUT_OF_MEMORY;
  describe(*resources, split, out);
  return CUDA_SUCCESS;
}

CUresult read(const CUdevResource& resource, Ref<MultiprocessorSet>* resources, uint64_t* split) {
  if (resource.type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  Origin origin;
  std::memcpy(&origin, resource._internal_padding, sizeof origin);
  *resources = runtime().handles().find<MultiprocessorSet>(origin.resources);
  *split = origin.split;
  return *resources && (*resources)->count() == resource.sm.smCount ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Describes all multiprocessors of the device, or those of the context if there is one.
CUresult get(Device& device, const Context* context, CUdevResource* resource, CUdevResourceType type) {
  if (resource == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  if (context != nullptr && context->multiprocessors())
    return describe(device, *context->multiprocessors(), 0, resource);
  Multiprocessors all;
  for (int i = 0; i < device.multiprocessors(); ++i) all.set(static_cast<size_t>(i));
  return describe(device, all, 0, resource);
}

// Removes the `count` lowest multiprocessors from `from` and returns them.
Multiprocessors take(Multiprocessors& from, unsigned count) {
  Multiprocessors taken;
  for (size_t i = 0; count > 0 && i < from.size(); ++i) {
    if (!from.test(i)) continue;
    from.reset(i);
    taken.set(i);
    --count;
  }
  return taken;
}

template <class Body>
CUresult call_on_green(CUgreenCtx handle, const Body& body) noexcept {
  return call([&] {
    const Ref<GreenContext> green = find<GreenContext>(handle);
    if (!green) return CUDA_ERROR_INVALID_CONTEXT;
    return green->context().active() ? body(*green) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
  });
}

}  // namespace

CUDA_EXPORT CUresult cuDeviceGetDevResource(CUdevice index, CUdevResource* resource, CUdevResourceType type) {
  return call([&] {
    Device* const device = runtime().device(index);
    return device == nullptr ? CUDA_ERROR_INVALID_DEVICE : get(*device, nullptr, resource, type);
  });
}

CUDA_EXPORT CUresult cuCtxGetDevResource(CUcontext handle, CUdevResource* resource, CUdevResourceType type) {
  return call([&] {
    const Ref<Context> context = find<Context>(handle);
    return context ? get(context->device(), context.get(), resource, type) : CUDA_ERROR_INVALID_CONTEXT;
  });
}

CUDA_EXPORT CUresult cuGreenCtxGetDevResource(CUgreenCtx handle, CUdevResource* resource,
                                              CUdevResourceType type) {
  return call_on_green(handle, [&](GreenContext& green) {
    return get(green.context().device(), &green.context(), resource, type);
  });
}

// Makes groups of equal size in ascending order, so that they are the same in every process.
CUDA_EXPORT CUresult cuDevSmResourceSplitByCount(CUdevResource* result, unsigned int* groups,
                                                 const CUdevResource* input, CUdevResource* remaining,
                                                 unsigned int flags, unsigned int least) {
  return call([&] {
    constexpr unsigned kKnown = 3;  // hints about cluster scheduling, which are ignored
    if (groups == nullptr || input == nullptr || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
    Ref<MultiprocessorSet> whole;
    uint64_t split = 0;
    if (const CUresult valid = read(*input, &whole, &split); valid != CUDA_SUCCESS) return valid;
    if (split != 0) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    if (least > whole->count()) return CUDA_ERROR_INVALID_VALUE;
    const unsigned each = std::max(least, 1u);
    const unsigned possible = whole->count() / each;
    *groups = result == nullptr ? possible : std::min(*groups, possible);
    Device& device = whole->device();
    Multiprocessors rest = *whole->multiprocessors();
    split = next_split.fetch_add(1);
    for (unsigned i = 0; i < *groups; ++i) {
      const Multiprocessors group = take(rest, each);
      if (result == nullptr) continue;
      if (const CUresult made = describe(device, group, split, &result[i]); made != CUDA_SUCCESS) return made;
    }
    if (remaining == nullptr) return CUDA_SUCCESS;
    if (rest.any()) return describe(device, rest, split, remaining);
    *remaining = CUdevResource{};
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* descriptor, CUdevResource* resources,
                                               unsigned int count) {
  return call([&] {
    if (descriptor == nullptr || resources == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
    Ref<MultiprocessorSet> first, other;
    uint64_t split = 0, its = 0;
    if (const CUresult valid = read(resources[0], &first, &split); valid != CUDA_SUCCESS) return valid;
    Multiprocessors all = *first->multiprocessors();
    for (unsigned i = 1; i < count; ++i) {
      if (const CUresult valid = read(resources[i], &other, &its); valid != CUDA_SUCCESS) return valid;
      if (&other->device() != &first->device() || its != split || its == 0)
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
      all |= *other->multiprocessors();
    }
    const Ref<MultiprocessorSet> together = MultiprocessorSet::of(first->device(), all);
    if (!together) return CUDA_ERROR_OUT_OF_MEMORY;
    *descriptor = make_handle<CUdevResourceDesc>(together->handle());
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuGreenCtxCreate(CUgreenCtx* handle, CUdevResourceDesc descriptor, CUdevice index,
                                      unsigned int flags) {
  return call([&] {
    if (handle == nullptr || flags != CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
    Device* const device = runtime().device(index);
    if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    const Ref<MultiprocessorSet> resources = find<MultiprocessorSet>(descriptor);
    if (!resources || &resources->device() != device) return CUDA_ERROR_INVALID_VALUE;
    uint64_t made = 0;
    const CUresult result = GreenContext::create(*resources, &made);
    if (result == CUDA_SUCCESS) *handle = make_handle<CUgreenCtx>(made);
    return result;
  });
}

CUDA_EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx handle) {
  return call([&] {
    const Ref<GreenContext> green = runtime().handles().remove<GreenContext>(handle_value(handle));
    if (!green) return CUDA_ERROR_INVALID_CONTEXT;
    green->destroy();
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx handle) {
  return call_on_green(handle, [&](GreenContext& green) {
    if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *context = make_handle<CUcontext>(green.context().handle());
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuGreenCtxRecordEvent(CUgreenCtx handle, CUevent event_handle) {
  return call_on_green(handle, [&](GreenContext& green) {
    const Ref<Event> event = find<Event>(event_handle);
    return event ? record_event_behind_all(green.context(), *event) : CUDA_ERROR_INVALID_HANDLE;
  });
}

CUDA_EXPORT CUresult cuGreenCtxWaitEvent(CUgreenCtx handle, CUevent event_handle) {
  return call_on_green(handle, [&](GreenContext& green) {
    const Ref<Event> event = find<Event>(event_handle);
    return event ? make_all_wait_for_event(green.context(), *event) : CUDA_ERROR_INVALID_HANDLE;
  });
}
#endif

#if CUDA_VERSION >= 12050
CUDA_EXPORT CUresult cuGreenCtxStreamCreate(CUstream* stream, CUgreenCtx handle, unsigned int flags,
                                            int priority) {
  return call_on_green(handle, [&](GreenContext& green) {
    if (stream == nullptr || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = green.context().check(); result != CUDA_SUCCESS) return result;
    const int clamped = std::clamp(priority, limits::kGreatestPriority, limits::kLeastPriority);
    return green.context().create_stream(flags, clamped, stream);
  });
}
#endif

#if CUDA_VERSION >= 12090
CUDA_EXPORT CUresult cuGreenCtxGetId(CUgreenCtx handle, unsigned long long* id) {
  return call([&] {
    if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Ref<Context> current = current_context();
    const Ref<GreenContext> green = find<GreenContext>(handle);
    const Context* const which = handle == nullptr ? current.get() : green ? &green->context() : nullptr;
    if (which == nullptr || !which->green()) return CUDA_ERROR_INVALID_CONTEXT;
    *id = which->id();
    return CUDA_SUCCESS;
  });
}
#endif
