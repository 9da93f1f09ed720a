// What every exported function does first and last: checks that cuInit succeeded and that no host function is the caller, waits while the process is locked, finds the
// current context, turns what is thrown into an error code.
//
// The functions in this folder are the driver API by object. They only check arguments and resolve handles;
// the work is done by the objects of the folder above.
#pragma once
#include <new>

#include "protocol/cuda/cuda_header.h"
#include "protocol/cuda/exports.h"
#include "server/softgpu/runtime/context.h"
#include "server/softgpu/runtime/device.h"
#include "server/softgpu/runtime/runtime.h"

namespace gpupool::softgpu::api {

// Calls that need cuInit but no context.
template <class Body>
CUresult call(const Body& body) noexcept {
  if (const CUresult state = runtime().state(); state != CUDA_SUCCESS) return state;
  if (calls_forbidden) [[unlikely]] return CUDA_ERROR_NOT_PERMITTED;
  runtime().process_state().pass();
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

// Calls that work on the current context: it must be there, active and without a sticky error.
template <class Body>
CUresult call_in_context(const Body& body) noexcept {
  return call([&] {
    const Ref<Context> context = current_context();
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (const CUresult result = context->check(); result != CUDA_SUCCESS) {
      Context::write_device_output();  // nothing behind this call would: the kernel that failed may have said
                                       // why
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

// Charges a call that has succeeded.
inline CUresult charged(Cost cost) { return costs().charge(cost), CUDA_SUCCESS; }
inline CUresult charged(Cost cost, Cost per_unit, uint64_t amount) { return costs().charge(cost, per_unit, amount), CUDA_SUCCESS; }

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

// Calls through the _ptds and _ptsz symbols: the stream 0 means the calling thread's own.
class PerThreadDefaultStream {
 public:
  PerThreadDefaultStream() : before_(active_) { active_ = true; }
  ~PerThreadDefaultStream() { active_ = before_; }
  static bool active() { return active_; }

 private:
  static thread_local bool active_;
  const bool before_;
};

// The stream behind a handle, special ones included; null for a bad handle.
Ref<Stream> find_stream(Context& current, CUstream handle);

// What cuCtxRecordEvent and cuCtxWaitEvent do, for green contexts too.
CUresult record_behind_all(Context& context, Event& event);
CUresult all_wait_for(Context& context, Event& event);

// As call_in_context, for functions that take a stream: checks the stream's own context too.
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
