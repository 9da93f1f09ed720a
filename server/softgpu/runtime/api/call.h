// Common beginning and end of the exported functions: check that cuInit has succeeded and that the caller is
// not a host function, wait while the process is locked, find the current context, and turn exceptions into
// error codes.
//
// This folder is the driver API, one file per kind of object. Its functions only check arguments and resolve
// handles; the objects of the folder above do the work. Any thread.
#pragma once
#include <new>

#include "protocol/driver/cuda_header.h"
#include "protocol/driver/exports.h"
#include "server/softgpu/runtime/context.h"
#include "server/softgpu/runtime/device.h"
#include "server/softgpu/runtime/runtime.h"

namespace gpupool::softgpu::api {

// Wraps calls that need cuInit but no context.
template <class Body>
CUresult call(const Body& body) noexcept {
  if (const CUresult state = runtime().state(); state != CUDA_SUCCESS) return state;
  if (calls_forbidden) [[unlikely]]
    return CUDA_ERROR_NOT_PERMITTED;
  runtime().process_state().wait_while_locked();
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

// Wraps calls on the current context, which must exist, be active, and have no sticky error.
template <class Body>
CUresult call_in_context(const Body& body) noexcept {
  return call([&] {
    const Ref<Context> context = current_context();
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (const CUresult result = context->check(); result != CUDA_SUCCESS) {
      Context::write_device_output();  // the output may explain the error, and no later call would write it
      return result;
    }
    return body(*context);
  });
}

template <class Handle>
uint64_t handle_value(Handle handle) {
  return reinterpret_cast<uint64_t>(handle);
}
template <class Handle>
Handle make_handle(uint64_t value) {
  return reinterpret_cast<Handle>(value);
}

template <class T, class Handle>
Ref<T> find(Handle handle) {
  return runtime().handles().find<T>(handle_value(handle));
}

// Charges the cost of a call that has succeeded, and returns CUDA_SUCCESS.
inline CUresult charged(Cost cost) {
  return costs().charge(cost), CUDA_SUCCESS;
}
inline CUresult charged(Cost cost, Cost per_unit, uint64_t amount) {
  return costs().charge(cost, per_unit, amount), CUDA_SUCCESS;
}

inline bool valid_context_flags(unsigned flags) {
  constexpr unsigned kKnown = CU_CTX_SCHED_MASK | CU_CTX_MAP_HOST | CU_CTX_LMEM_RESIZE_TO_MAX | 0xe0u;
  if ((flags & ~kKnown) != 0) return false;
  const unsigned schedule = flags & CU_CTX_SCHED_MASK;
  return schedule == CU_CTX_SCHED_AUTO || schedule == CU_CTX_SCHED_SPIN || schedule == CU_CTX_SCHED_YIELD ||
         schedule == CU_CTX_SCHED_BLOCKING_SYNC;
}

inline Ref<Context> find_context(CUcontext handle) {
  return handle == nullptr ? current_context() : find<Context>(handle);
}

// Scope of a call through a _ptds or _ptsz symbol: stream 0 means the calling thread's default stream.
class PerThreadDefaultStream {
 public:
  PerThreadDefaultStream() : before_(active_) { active_ = true; }
  ~PerThreadDefaultStream() { active_ = before_; }
  static bool active() { return active_; }

 private:
  static thread_local bool active_;
  const bool before_;
};

// Returns the stream of a handle, special handles included; null for an invalid handle.
Ref<Stream> find_stream(Context& current, CUstream handle);

// Implement cuCtxRecordEvent and cuCtxWaitEvent, for green contexts, too.
CUresult record_event_behind_all(Context& context, Event& event);
CUresult make_all_wait_for_event(Context& context, Event& event);

// Like call_in_context(), for functions that take a stream: checks the stream's own context, too.
template <class Body>
CUresult call_on_stream(CUstream handle, const Body& body) noexcept {
  return call_in_context([&](Context& current) {
    const Ref<Stream> stream = find_stream(current, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult result = stream->context().check(); result != CUDA_SUCCESS) return result;
    return body(*stream);
  });
}

}  // namespace gpupool::softgpu::api
