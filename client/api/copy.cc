// The copy functions of the driver API. client/copies/copy_route.h has the paths that a copy can take.
#include "client/api/copy_box.h"
#include "client/api/copy_run.h"
#include "client/api/device_range.h"
#include "client/memory/array.h"
#include "protocol/calls/box.h"
#include "protocol/driver/exports.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

CUresult to_device(CUdeviceptr to, const void* from, size_t bytes, CUstream stream, bool wait,
                   const char* caller = __builtin_FUNCTION()) {
  return guarded(caller, [&] {
    return run_copy({.stream = stream, .wait = wait}, make_box(false, address_of(from), true, to, bytes));
  });
}
CUresult from_device(void* to, CUdeviceptr from, size_t bytes, CUstream stream, bool wait,
                     const char* caller = __builtin_FUNCTION()) {
  return guarded(caller, [&] {
    return run_copy({.stream = stream, .wait = wait}, make_box(true, from, false, address_of(to), bytes));
  });
}
CUresult on_device(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream, bool wait,
                   const char* caller = __builtin_FUNCTION()) {
  return guarded(caller, [&] {
    return run_copy({.stream = stream, .wait = wait}, make_box(true, from, true, to, bytes));
  });
}
CUresult anywhere(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream, bool wait,
                  const char* caller = __builtin_FUNCTION()) {
  return guarded(caller, [&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    return run_copy({.stream = stream, .wait = wait},
                    make_box(is_device(from), from, is_device(to), to, bytes));
  });
}

CUresult copy_2d(const CUDA_MEMCPY2D* copy, CUstream stream, bool wait,
                 const char* caller = __builtin_FUNCTION()) {
  return guarded(caller, [&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!copy) return CUDA_ERROR_INVALID_VALUE;
    if (names_array(copy->srcMemoryType, copy->dstMemoryType))
      return copy_array(cuda::boxed(*copy), stream, wait);
    CopyBox box;
    const CUresult result = make_box(*copy, box);
    return result == CUDA_SUCCESS ? run_copy({.stream = stream, .wait = wait}, box) : result;
  });
}

CUresult copy_3d(const CUDA_MEMCPY3D* copy, CUstream stream, bool wait,
                 const char* caller = __builtin_FUNCTION()) {
  return guarded(caller, [&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!copy) return CUDA_ERROR_INVALID_VALUE;
    if (names_array(copy->srcMemoryType, copy->dstMemoryType)) return copy_array(*copy, stream, wait);
    CopyBox box;
    const CUresult result = make_box(*copy, box);
    return result == CUDA_SUCCESS ? run_copy({.stream = stream, .wait = wait}, box) : result;
  });
}

// Both contexts belong to the caller's session.
CUresult peer_on_server(const CopyCaller& caller, const CopyRoute& route, const CopyBox& box) {
  for (Context* const context : {box.from.context, box.to.context}) {
    const CUresult result = route.contexts_first ? synchronize_context(*context) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) return result;
  }
  Mirrors::PendingWrite use;
  if (const CUresult result = before_copy(caller, box, use); result != CUDA_SUCCESS) return result;
  const CUresult result = rows::cuMemcpyPeerAsync::at(
      {caller.session, caller.context},
      {box.to.address, cuda::handle_from_bits<CUcontext>(box.to.context->handle), box.from.address,
       cuda::handle_from_bits<CUcontext>(box.from.context->handle), box.width, caller.stream});
  return result == CUDA_SUCCESS && route.wait ? synchronize_stream(*caller.context, caller.stream) : result;
}

CUresult peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
              CUstream stream, bool wait, const char* caller = __builtin_FUNCTION()) {
  return guarded(caller, [&]() -> CUresult {
    CopyCaller caller{.stream = stream, .wait = wait};
    if (const CUresult result = enter(caller); result != CUDA_SUCCESS) return result;
    Context* const source = handles().find_as<Context>(Kind::context, cuda::handle_bits(from_context));
    Context* const target = handles().find_as<Context>(Kind::context, cuda::handle_bits(to_context));
    if (!source || !target) return CUDA_ERROR_INVALID_CONTEXT;
    // CUDA overlaps a synchronous peer copy with no work of the three contexts, even of one device.
    CopyFacts facts{.direction = CopyDirection::on_devices,
                    .bytes = bytes,
                    .synchronous = wait,
                    .between_servers = source->session != caller.session || target->session != caller.session,
                    .two_devices = true,
                    .legacy_stream = !caller.stream && source->device != target->device,
                    .pinned = true};
    CopyBox box = make_box(true, from, true, to, bytes);
    if (const auto captured = capture_copy(caller, box, facts)) return *captured;
    const CopyRoute route = choose_route(facts);
    box.from.context = source;
    box.to.context = target;
    const auto copy = [&]() -> CUresult {
      if (route.path == CopyRoute::Path::on_server) return peer_on_server(caller, route, box);
      if (bytes == 0) return CUDA_SUCCESS;
      if (!is_device_range_mapped(*source->session, from, bytes) ||
          !is_device_range_mapped(*target->session, to, bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      return copy_between_servers(*caller.context, caller.stream, box, route.wait);
    };
    return route.legacy_streams ? copy_in_legacy_streams(*caller.context, *source, *target, copy) : copy();
  });
}

}  // namespace

// The contexts are ignored: an address identifies its memory.
CUresult gpupool::cuda::copy_box_between(const CUDA_MEMCPY3D& copy, CUcontext, CUcontext, CUstream stream,
                                         bool wait) {
  return copy_3d(&copy, stream, wait);
}

// Defines a function, its per-thread-stream twin, and their common body.
#define SYNC_COPY(function, parameters, arguments, body) \
  CUDA_EXPORT CUresult function parameters {             \
    const CUstream stream = nullptr;                     \
    return body;                                         \
  }                                                      \
  CUDA_EXPORT CUresult function##_ptds parameters {      \
    const CUstream stream = CU_STREAM_PER_THREAD;        \
    return body;                                         \
  }
#define UNPACK(...) __VA_ARGS__
#define ASYNC_COPY(function, parameters, body)                               \
  CUDA_EXPORT CUresult function(UNPACK parameters, CUstream stream) {        \
    return body;                                                             \
  }                                                                          \
  CUDA_EXPORT CUresult function##_ptsz(UNPACK parameters, CUstream stream) { \
    stream = or_per_thread(stream);                                          \
    return body;                                                             \
  }

SYNC_COPY(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t bytes), ,
          anywhere(to, from, bytes, stream, true))
SYNC_COPY(cuMemcpyHtoD_v2, (CUdeviceptr to, const void* from, size_t bytes), ,
          to_device(to, from, bytes, stream, true))
SYNC_COPY(cuMemcpyDtoH_v2, (void* to, CUdeviceptr from, size_t bytes), ,
          from_device(to, from, bytes, stream, true))
SYNC_COPY(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes), ,
          on_device(to, from, bytes, stream, true))
SYNC_COPY(cuMemcpy2D_v2, (const CUDA_MEMCPY2D* copy), , copy_2d(copy, stream, true))
SYNC_COPY(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D* copy), , copy_2d(copy, stream, true))
SYNC_COPY(cuMemcpy3D_v2, (const CUDA_MEMCPY3D* copy), , copy_3d(copy, stream, true))
SYNC_COPY(cuMemcpyPeer,
          (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes), ,
          peer(to, to_context, from, from_context, bytes, stream, true))

ASYNC_COPY(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
           anywhere(to, from, bytes, stream, false))
ASYNC_COPY(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void* from, size_t bytes),
           to_device(to, from, bytes, stream, false))
ASYNC_COPY(cuMemcpyDtoHAsync_v2, (void* to, CUdeviceptr from, size_t bytes),
           from_device(to, from, bytes, stream, false))
ASYNC_COPY(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
           on_device(to, from, bytes, stream, false))
ASYNC_COPY(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D* copy), copy_2d(copy, stream, false))
ASYNC_COPY(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D* copy), copy_3d(copy, stream, false))
ASYNC_COPY(cuMemcpyPeerAsync,
           (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes),
           peer(to, to_context, from, from_context, bytes, stream, false))
