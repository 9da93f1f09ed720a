// Contexts: creation, the calling thread's stack, settings and synchronisation.
#include "server/softgpu/runtime/api/call.h"
#include "server/softgpu/runtime/graph.h"

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

CUresult create(CUcontext* handle, unsigned flags, CUdevice index) {
  return call([&] {
    if (handle == nullptr || !valid_context_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
    Device* device = runtime().device(index);
    if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    Ref<Context> context = make_ref<Context>(*device, false, flags);
    context->set_handle(runtime().handles().add(context));
    if (context->handle() == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    if (const CUresult result = context->activate(); result != CUDA_SUCCESS) {
      runtime().handles().remove<Context>(context->handle());
      return result;
    }
    *handle = make_handle<CUcontext>(context->handle());
    push_context(std::move(context));
    return CUDA_SUCCESS;
  });
}

// Wraps queries of the current context, which work in spite of a sticky error.
template <class Body>
CUresult call_about_context(const Body& body) noexcept {
  return call([&] {
    const Ref<Context> context = current_context();
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->active()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return body(*context);
  });
}

}  // namespace

namespace gpupool::softgpu::api {

CUresult record_event_behind_all(Context& context, Event& event) {
  if (&event.context().root() != &context.root()) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = context.check(); result != CUDA_SUCCESS) return result;
  if (context.invalidate_captures()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const Ref<EventOp> op = event.make_record();
  const CUresult result = context.enqueue_behind_all(op, false);
  if (result == CUDA_SUCCESS) event.set_record(op);
  return result;
}

CUresult make_all_wait_for_event(Context& context, Event& event) {
  if (const CUresult result = context.check(); result != CUDA_SUCCESS) return result;
  if (context.invalidate_captures()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (event.captured()) {
    std::lock_guard guard(graph_mutex());
    const Ref<Capture> capture = event.capture();
    if (capture && !capture->ended) {
      capture->invalid = true;
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  const Ref<Op> record = event.wait_operation();
  if (!record) return CUDA_SUCCESS;
  const Ref<MarkerOp> marker = make_ref<MarkerOp>();
  marker->after(*record);
  return context.enqueue_behind_all(marker, true);
}

}  // namespace gpupool::softgpu::api

CUDA_EXPORT CUresult cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device) {
  return create(context, flags, device);
}
CUDA_EXPORT CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam*, int affinities,
                                    unsigned int flags, CUdevice device) {
  return affinities != 0 ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY : create(context, flags, device);
}
#if CUDA_VERSION >= 12050
CUDA_EXPORT CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* parameters, unsigned int flags,
                                    CUdevice device) {
  if (parameters != nullptr && parameters->numExecAffinityParams != 0)
    return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  if (parameters != nullptr && parameters->cigParams != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  return create(context, flags, device);
}
#endif

CUDA_EXPORT CUresult cuCtxDestroy_v2(CUcontext handle) {
  return call([&] {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Ref<Context> context = find<Context>(handle);
    if (!context || context->primary() || context->green()) return CUDA_ERROR_INVALID_CONTEXT;
    if (!runtime().handles().remove<Context>(handle_value(handle))) return CUDA_ERROR_INVALID_CONTEXT;
    context->tear_down();
    if (current_context() == context) pop_context();
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext handle) {
  return call([&] {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Ref<Context> context = find<Context>(handle);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    push_context(std::move(context));
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext* handle) {
  return call([&] {
    const Ref<Context> context = pop_context();
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (handle != nullptr) *handle = make_handle<CUcontext>(context->handle());
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuCtxSetCurrent(CUcontext handle) {
  return call([&] {
    Ref<Context> context = find<Context>(handle);
    if (handle != nullptr && !context) return CUDA_ERROR_INVALID_CONTEXT;
    set_current_context(std::move(context));
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuCtxGetCurrent(CUcontext* handle) {
  return call([&] {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Ref<Context> context = current_context();
    *handle = context ? make_handle<CUcontext>(context->handle()) : nullptr;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
  return call([&] {
    const Ref<Context> context = current_context();
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *device = context->device().index();
    return CUDA_SUCCESS;
  });
}

#if CUDA_VERSION >= 13000
CUDA_EXPORT CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext handle) {
  return call([&] {
    const Ref<Context> context = find_context(handle);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *device = context->device().index();
    return CUDA_SUCCESS;
  });
}
#endif

CUDA_EXPORT CUresult cuCtxGetFlags(unsigned int* flags) {
  return call_about_context([&](Context& context) {
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = context.flags();
    return CUDA_SUCCESS;
  });
}

#if CUDA_VERSION >= 12010
CUDA_EXPORT CUresult cuCtxSetFlags(unsigned int flags) {
  return call_about_context([&](Context& context) {
    if (!valid_context_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
    context.set_flags(flags);
    return CUDA_SUCCESS;
  });
}
#endif

#if CUDA_VERSION >= 12000
CUDA_EXPORT CUresult cuCtxGetId(CUcontext handle, unsigned long long* id) {
  return call([&] {
    if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Ref<Context> context = find_context(handle);
    if (!context) return handle == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *id = context->id();
    return CUDA_SUCCESS;
  });
}
#endif

CUDA_EXPORT CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int* version) {
  return call([&] {
    if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!find_context(handle)) return CUDA_ERROR_INVALID_CONTEXT;
    *version = 3020;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuCtxSynchronize() {
  return call_in_context([](Context& context) {
    return context.invalidate_captures() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : context.synchronize();
  });
}

#if CUDA_VERSION >= 13000
CUDA_EXPORT CUresult cuCtxSynchronize_v2(CUcontext handle) {
  return call([&] {
    const Ref<Context> context = find_context(handle);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    const CUresult result = context->check();
    if (result != CUDA_SUCCESS) return result;
    return context->invalidate_captures() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : context->synchronize();
  });
}
#endif

CUDA_EXPORT CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
  return call_about_context([&](Context& context) {
    return value == nullptr ? CUDA_ERROR_INVALID_VALUE : context.limit(limit, value);
  });
}

CUDA_EXPORT CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  return call_in_context([&](Context& context) { return context.set_limit(limit, value); });
}

CUDA_EXPORT CUresult cuCtxGetCacheConfig(CUfunc_cache* config) {
  return call_about_context([&](Context& context) {
    if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *config = static_cast<CUfunc_cache>(context.root().cache_config.load());
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
  return call_in_context([&](Context& context) {
    if (static_cast<unsigned>(config) > CU_FUNC_CACHE_PREFER_EQUAL) return CUDA_ERROR_INVALID_VALUE;
    context.root().cache_config = config;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuCtxGetSharedMemConfig(CUsharedconfig* config) {
  return call_about_context([&](Context& context) {
    if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *config = static_cast<CUsharedconfig>(context.root().shared_config.load());
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuCtxSetSharedMemConfig(CUsharedconfig config) {
  return call_in_context([&](Context& context) {
    if (static_cast<unsigned>(config) > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE)
      return CUDA_ERROR_INVALID_VALUE;
    context.root().shared_config = config;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return call_about_context([&](Context&) {
    if (least != nullptr) *least = limits::kLeastPriority;
    if (greatest != nullptr) *greatest = limits::kGreatestPriority;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuCtxResetPersistingL2Cache() {
  return call_in_context([](Context&) { return CUDA_SUCCESS; });
}

CUDA_EXPORT CUresult cuCtxGetExecAffinity(CUexecAffinityParam* parameter, CUexecAffinityType) {
  return call_about_context(
      [&](Context&) { return parameter ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY : CUDA_ERROR_INVALID_VALUE; });
}

CUDA_EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
  return call_in_context([&](Context& context) {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const Ref<Context> other = find<Context>(peer);
    return other && other.get() != &context ? context.enable_peer(*other) : CUDA_ERROR_INVALID_CONTEXT;
  });
}

CUDA_EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  return call_in_context([&](Context& context) {
    const Ref<Context> other = find<Context>(peer);
    return other ? context.disable_peer(*other) : CUDA_ERROR_INVALID_CONTEXT;
  });
}

// Deprecated use count of contexts.
CUDA_EXPORT CUresult cuCtxAttach(CUcontext* handle, unsigned int flags) {
  return call_about_context([&](Context& context) {
    if (handle == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    ++context.attached;
    *handle = make_handle<CUcontext>(context.handle());
    return CUDA_SUCCESS;
  });
}
// If no cuCtxAttach is left, destroys the context, which fails for a primary one. As documented, the context
// must be current.
CUDA_EXPORT CUresult cuCtxDetach(CUcontext handle) {
  return call_about_context([&](Context& context) {
    if (handle_value(handle) != context.handle()) return CUDA_ERROR_INVALID_CONTEXT;
    for (int uses = context.attached; uses > 0;) {
      if (context.attached.compare_exchange_weak(uses, uses - 1)) return CUDA_SUCCESS;
    }
    return cuCtxDestroy_v2(handle);
  });
}

#if CUDA_VERSION >= 12050
CUDA_EXPORT CUresult cuCtxRecordEvent(CUcontext handle, CUevent event_handle) {
  return call([&] {
    const Ref<Context> context = find_context(handle);
    const Ref<Event> event = find<Event>(event_handle);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    return record_event_behind_all(*context, *event);
  });
}

CUDA_EXPORT CUresult cuCtxWaitEvent(CUcontext handle, CUevent event_handle) {
  return call([&] {
    const Ref<Context> context = find_context(handle);
    const Ref<Event> event = find<Event>(event_handle);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    return make_all_wait_for_event(*context, *event);
  });
}
#endif
