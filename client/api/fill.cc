// Fills. CUDA's synchronous fills of device memory are asynchronous too, so each uses its ...Async row.
#include <cstring>

#include "client/api/device_range.h"
#include "client/graphs/capture.h"
#include "client/memory/compared_copies.h"
#include "client/memory/host_memory.h"
#include "client/streams/host_function.h"
#include "client/streams/side_stream.h"
#include "protocol/driver/exports.h"

using namespace gpupool::client;

namespace {

// Checks the memory before the row is queued: the row's error would surface later, and the worker checks
// whole mappings only.
CUresult find_memory(CUdeviceptr address, uint64_t pitch, uint64_t width, uint64_t height, uint64_t item,
                     CallTarget& memory) {
  Session* session = nullptr;
  Context* context = nullptr;
  if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
  if (const CUresult result = session->before_call(context); result != CUDA_SUCCESS) return result;
  if (width == 0 || height == 0) return CUDA_SUCCESS;
  uint64_t bytes = 0, rows = 0;
  if (address % item != 0 || __builtin_mul_overflow(width, item, &bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (height > 1 && (pitch < bytes || pitch % item != 0)) return CUDA_ERROR_INVALID_VALUE;
  if (__builtin_mul_overflow(height - 1, pitch, &rows) || __builtin_add_overflow(rows, bytes, &bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  memory.session = session_of(address, session);
  if (!memory.session && host_memory().is_pinned(host_pointer(address), bytes)) {
    if (const CUresult result = reach_host_memory(address, *context); result != CUDA_SUCCESS) return result;
    memory = {session, context};
    return CUDA_SUCCESS;
  }
  if (!memory.session || !is_device_range_mapped(*memory.session, address, bytes))
    return CUDA_ERROR_INVALID_VALUE;
  memory.context = memory.session == session ? context : context_of(*memory.session, address);
  return memory.context ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

// Fills pinned memory that is not mirrored, in this process, when the stream reaches the fill.
CUresult fill_host(Session& session, Context& context, CUstream stream,
                   const CUDA_MEMSET_NODE_PARAMS& params) {
  return run_in_stream(session, context, stream, [params]() -> uint64_t {
    for (size_t row = 0; row < params.height; ++row) {
      auto* const start = static_cast<std::byte*>(host_pointer(params.dst + row * params.pitch));
      for (size_t i = 0; i < params.width; ++i)
        std::memcpy(start + i * params.elementSize, &params.value, params.elementSize);
    }
    return 0;
  });
}

// `arguments`: the row's, without the stream; `params`: the same as a graph node.
template <class Row, class... Arguments>
CUresult fill(const CallTarget& memory, CUstream stream, bool wait, const CUDA_MEMSET_NODE_PARAMS& params,
              Arguments... arguments) {
  Session* session = nullptr;
  Context* context = nullptr;
  if (const CUresult result = require_stream_for_work(&session, &context, stream); result != CUDA_SUCCESS)
    return result;
  const bool on_host = !session_of(params.dst, session) && !mirrors().find(params.dst);
  const auto captured = capture::add(*context, stream, CU_GRAPH_NODE_TYPE_MEMSET, [&](NodeWork& work) {
    work = FillWork{params};
    return memory.session == session && !on_host ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
  });
  if (captured) [[unlikely]]
    return *captured;
  Mirrors::PendingWrite use;
  if (mirrors().any() || compared_copies().any()) [[unlikely]] {
    const CUstream behind = memory.session == session ? stream : nullptr;
    const uint64_t bytes = params.height > 1
                               ? (params.height - 1) * params.pitch + params.width * params.elementSize
                               : params.width * params.elementSize;
    CUresult result = mirrors().before_use(*memory.context, params.dst, bytes, &use);
    if (result == CUDA_SUCCESS)
      result = compared_copies().before_use(*memory.context, behind, params.dst, bytes);
    if (result != CUDA_SUCCESS) return result;
  }
  if (on_host) [[unlikely]] {
    const CUresult result = fill_host(*session, *context, stream, params);
    return result == CUDA_SUCCESS && wait ? synchronize_stream(*context, stream) : result;
  }
  if (memory.session == session) {
    Context* const side = side_context(*context, params.dst);
    if (!side) [[likely]]
      return Row::at({session, context}, {arguments..., stream});
    CUstream side_stream = nullptr;
    CUresult result = fork_to_side_stream(*context, stream, *side, &side_stream);
    if (result == CUDA_SUCCESS) result = Row::at({session, side}, {arguments..., side_stream});
    return result == CUDA_SUCCESS ? join_side_stream(*context, stream, *side, side_stream) : result;
  }
  return run_between(*context, stream, memory.context, nullptr, [memory, arguments...]() -> CUresult {
    CUstream own = nullptr;
    if (const CUresult result = internal_stream(*memory.context, &own); result != CUDA_SUCCESS) return result;
    const CUresult result = Row::at(memory, {arguments..., own});
    return result == CUDA_SUCCESS ? synchronize_stream(*memory.context, own) : result;
  });
}

template <class Row, class T>
CUresult fill_line(CUdeviceptr address, T value, size_t count, CUstream stream, bool wait,
                   const char* caller = __builtin_FUNCTION()) {
  return guarded(caller, [&]() -> CUresult {
    CallTarget memory;
    const CUresult result = find_memory(address, 0, count, 1, sizeof(T), memory);
    if (!memory.context || result != CUDA_SUCCESS) return result;
    return fill<Row>(memory, stream, wait, {address, count * sizeof(T), value, sizeof(T), count, 1}, address,
                     value, count);
  });
}

template <class Row, class T>
CUresult fill_2d(CUdeviceptr address, size_t pitch, T value, size_t width, size_t height, CUstream stream,
                 bool wait, const char* caller = __builtin_FUNCTION()) {
  return guarded(caller, [&]() -> CUresult {
    CallTarget memory;
    const CUresult result = find_memory(address, pitch, width, height, sizeof(T), memory);
    if (!memory.context || result != CUDA_SUCCESS) return result;
    return fill<Row>(memory, stream, wait, {address, pitch, value, sizeof(T), width, height}, address, pitch,
                     value, width, height);
  });
}

}  // namespace

CUresult gpupool::client::check_fill(const CUDA_MEMSET_NODE_PARAMS& params, Context& context) {
  if ((params.elementSize != 1 && params.elementSize != 2 && params.elementSize != 4))
    return CUDA_ERROR_INVALID_VALUE;
  CallTarget memory;
  const CUresult result =
      find_memory(params.dst, params.pitch, params.width, params.height, params.elementSize, memory);
  if (result != CUDA_SUCCESS) return result;
  return !memory.session || memory.session == context.session ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

#define FILL(function, row, type)                                                                   \
  CUDA_EXPORT CUresult function(CUdeviceptr address, type value, size_t count) {                    \
    return fill_line<rows::row>(address, value, count, nullptr, true);                              \
  }                                                                                                 \
  CUDA_EXPORT CUresult function##_ptds(CUdeviceptr address, type value, size_t count) {             \
    return fill_line<rows::row>(address, value, count, CU_STREAM_PER_THREAD, true);                 \
  }                                                                                                 \
  CUDA_EXPORT CUresult row(CUdeviceptr address, type value, size_t count, CUstream stream) {        \
    return fill_line<rows::row>(address, value, count, stream, false);                              \
  }                                                                                                 \
  CUDA_EXPORT CUresult row##_ptsz(CUdeviceptr address, type value, size_t count, CUstream stream) { \
    return fill_line<rows::row>(address, value, count, or_per_thread(stream), false);               \
  }
FILL(cuMemsetD8_v2, cuMemsetD8Async, unsigned char)
FILL(cuMemsetD16_v2, cuMemsetD16Async, unsigned short)
FILL(cuMemsetD32_v2, cuMemsetD32Async, unsigned int)
#undef FILL

#define BOX CUdeviceptr address, size_t pitch
#define FILL_2D(function, row, type)                                                               \
  CUDA_EXPORT CUresult function(BOX, type value, size_t width, size_t height) {                    \
    return fill_2d<rows::row>(address, pitch, value, width, height, nullptr, true);                \
  }                                                                                                \
  CUDA_EXPORT CUresult function##_ptds(BOX, type value, size_t width, size_t height) {             \
    return fill_2d<rows::row>(address, pitch, value, width, height, CU_STREAM_PER_THREAD, true);   \
  }                                                                                                \
  CUDA_EXPORT CUresult row(BOX, type value, size_t width, size_t height, CUstream stream) {        \
    return fill_2d<rows::row>(address, pitch, value, width, height, stream, false);                \
  }                                                                                                \
  CUDA_EXPORT CUresult row##_ptsz(BOX, type value, size_t width, size_t height, CUstream stream) { \
    return fill_2d<rows::row>(address, pitch, value, width, height, or_per_thread(stream), false); \
  }
FILL_2D(cuMemsetD2D8_v2, cuMemsetD2D8Async, unsigned char)
FILL_2D(cuMemsetD2D16_v2, cuMemsetD2D16Async, unsigned short)
FILL_2D(cuMemsetD2D32_v2, cuMemsetD2D32Async, unsigned int)
#undef FILL_2D
#undef BOX
