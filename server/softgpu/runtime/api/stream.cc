// Streams: creation, waiting, host functions.
#include <algorithm>

#include "server/softgpu/runtime/api/call.h"
#include "server/softgpu/runtime/graph.h"

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace gpupool::softgpu::api {

thread_local bool PerThreadDefaultStream::active_ = false;

Ref<Stream> find_stream(Context& current, CUstream handle) {
  if (handle == nullptr) {
    return PerThreadDefaultStream::active() ? current.per_thread_stream() : current.legacy_stream();
  }
  if (handle == CU_STREAM_LEGACY) return current.legacy_stream();
  if (handle == CU_STREAM_PER_THREAD) return current.per_thread_stream();
  return find<Stream>(handle);
}

}  // namespace gpupool::softgpu::api

namespace {

constexpr unsigned kExternal = 1;  // CU_EVENT_WAIT_EXTERNAL: captured as a node

// Querying a captured stream, or waiting for it, invalidates the capture. Returns false if the stream is not
// captured.
bool invalidate_capture(Stream& stream) {
  if (!stream.capturing()) return false;
  std::lock_guard guard(graph_mutex());
  if (const Ref<Capture> capture = stream.capture()) capture->invalid = true;
  return true;
}

CUresult create(CUstream* stream, unsigned flags, int priority) {
  return call_in_context([&](Context& context) {
    if (stream == nullptr || (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const int clamped = std::clamp(priority, limits::kGreatestPriority, limits::kLeastPriority);
    return context.create_stream(flags, clamped, stream);
  });
}

// Wraps queries of a stream, which work in spite of a sticky error of its context.
template <class Body>
CUresult call_about_stream(CUstream handle, const Body& body) noexcept {
  return call([&] {
    const Ref<Context> context = current_context();
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->active()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    const Ref<Stream> stream = find_stream(*context, handle);
    return stream ? body(*stream) : CUDA_ERROR_INVALID_HANDLE;
  });
}

}  // namespace

CUDA_EXPORT CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  return create(stream, flags, priority);
}

CUDA_EXPORT CUresult cuStreamDestroy_v2(CUstream handle) {
  return call([&] {
    const Ref<Stream> stream = runtime().handles().remove<Stream>(handle_value(handle));
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capturing()) {
      std::lock_guard guard(graph_mutex());
      if (const Ref<Capture> capture = stream->capture()) capture->stream_destroyed(*stream);
    }
    stream->context().destroy_stream(*stream);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuStreamQuery(CUstream handle) {
  return call_on_stream(handle, [](Stream& stream) {
    if (invalidate_capture(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!stream.context().idle(stream)) return CUDA_ERROR_NOT_READY;
    return stream.context().error();
  });
}

CUDA_EXPORT CUresult cuStreamSynchronize(CUstream handle) {
  return call_on_stream(handle, [](Stream& stream) {
    return invalidate_capture(stream) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                                      : stream.context().synchronize(stream);
  });
}

CUDA_EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned int flags) {
  return call_on_stream(handle, [&](Stream& stream) {
    const Ref<Event> event = find<Event>(event_handle);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    if ((flags & ~kExternal) != 0) return CUDA_ERROR_INVALID_VALUE;
    if (stream.capturing() || event->captured()) {
      std::lock_guard guard(graph_mutex());
      const Ref<Capture> mine = stream.capture(), theirs = event->capture();
      const bool live = theirs && !theirs->ended;
      if (live && !(mine && mine != theirs)) {
        theirs->join(Ref<Stream>::share(&stream), event->captured_nodes());
        return CUDA_SUCCESS;
      }
      if (mine && live) return CUDA_ERROR_STREAM_CAPTURE_MERGE;
      if (mine && flags == kExternal) {
        mine->add_node(stream, CU_GRAPH_NODE_TYPE_WAIT_EVENT, handle_value(event_handle));
        return CUDA_SUCCESS;
      }
      if (mine) {
        mine->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
      }
    }
    const Ref<Op> record = event->wait_operation();
    if (!record) return charged(Cost::stream_wait_event);
    return stream.context().enqueue(stream, make_ref<MarkerOp>(), record.get());
  });
}

CUDA_EXPORT CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* user) {
  return call_on_stream(handle, [&](Stream& stream) {
    if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return stream.context().enqueue(stream, make_ref<HostFunctionOp>(function, user));
  });
}

CUDA_EXPORT CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void* user,
                                         unsigned int flags) {
  return call_on_stream(handle, [&](Stream& stream) {
    if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    return stream.context().enqueue(stream, make_ref<StreamCallbackOp>(callback, handle, user));
  });
}

CUDA_EXPORT CUresult cuStreamGetFlags(CUstream handle, unsigned int* flags) {
  return call_about_stream(handle, [&](Stream& stream) {
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = stream.flags();
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuStreamGetPriority(CUstream handle, int* priority) {
  return call_about_stream(handle, [&](Stream& stream) {
    if (priority == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *priority = stream.priority();
    return CUDA_SUCCESS;
  });
}

#if CUDA_VERSION >= 12000
CUDA_EXPORT CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
  return call_about_stream(handle, [&](Stream& stream) {
    if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *id = stream.id();
    return CUDA_SUCCESS;
  });
}
#endif

CUDA_EXPORT CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  return call_about_stream(handle, [&](Stream& stream) {
    if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *context = make_handle<CUcontext>(stream.context().handle());
    return CUDA_SUCCESS;
  });
}

#if CUDA_VERSION >= 12050
CUDA_EXPORT CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext* context, CUgreenCtx* green) {
  return call_about_stream(handle, [&](Stream& stream) {
    if (handle == CU_STREAM_PER_THREAD && stream.context().green()) return CUDA_ERROR_INVALID_HANDLE;
    if (context != nullptr) *context = make_handle<CUcontext>(stream.context().root().handle());
    if (green != nullptr) *green = make_handle<CUgreenCtx>(stream.context().green_handle);
    return CUDA_SUCCESS;
  });
}
#endif

#if CUDA_VERSION >= 12040
CUDA_EXPORT CUresult cuStreamGetGreenCtx(CUstream handle, CUgreenCtx* green) {
  return call_about_stream(handle, [&](Stream& stream) {
    if (green == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *green = make_handle<CUgreenCtx>(stream.context().green_handle);
    return CUDA_SUCCESS;
  });
}
#endif

#if CUDA_VERSION >= 12080
CUDA_EXPORT CUresult cuStreamGetDevice(CUstream handle, CUdevice* device) {
  return call_about_stream(handle, [&](Stream& stream) {
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *device = stream.context().device().index();
    return CUDA_SUCCESS;
  });
}
#endif

CUDA_EXPORT CUresult cuStreamSetAttribute(CUstream handle, CUstreamAttrID attribute,
                                          const CUstreamAttrValue* value) {
  return call_on_stream(handle, [&](Stream& stream) {
    return value == nullptr ? CUDA_ERROR_INVALID_VALUE : stream.set_attribute(attribute, *value);
  });
}

CUDA_EXPORT CUresult cuStreamGetAttribute(CUstream handle, CUstreamAttrID attribute,
                                          CUstreamAttrValue* value) {
  return call_about_stream(handle, [&](Stream& stream) {
    return value == nullptr ? CUDA_ERROR_INVALID_VALUE : stream.attribute(attribute, value);
  });
}

CUDA_EXPORT CUresult cuStreamCopyAttributes(CUstream destination, CUstream source) {
  return call_on_stream(destination, [&](Stream& to) {
    return call_about_stream(source, [&](Stream& from) {
      if (&from.context() != &to.context()) return CUDA_ERROR_INVALID_VALUE;
      to.copy_attributes(from);
      return CUDA_SUCCESS;
    });
  });
}
