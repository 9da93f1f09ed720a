// Copies from and to arrays (client/memory/array.h).
#include <algorithm>

#include "client/api/device_range.h"
#include "client/graphs/capture.h"
#include "client/memory/array.h"
#include "client/memory/compared_copies.h"
#include "client/memory/host_memory.h"
#include "client/memory/mirrors.h"
#include "client/streams/cross_server.h"
#include "protocol/calls/array_bytes.h"
#include "protocol/driver/exports.h"

namespace gpupool::client {
namespace {

constexpr uint64_t kPieceBytes = 4u << 20;   // bytes of the device buffer that a copy goes through
constexpr uint64_t kLeastPiece = 64u << 10;  // bytes, if that much is not available
// Upper limit of all sizes and offsets, so that their sums cannot overflow.
constexpr uint64_t kSane = uint64_t{1} << 46;

bool part(uint64_t first, uint64_t count, uint64_t of) {
  return first <= of && count <= of - first;
}

// Refers to the fields of one side of a copy.
struct CopySide {
  CUmemorytype& type;
  CUdeviceptr& device;
  CUarray& array;
  const void* host;
  size_t &x, &y, &z, &pitch, &height;
  bool on_host = false;
  uint64_t span = 0;  // bytes from the address on that may be accessed; memory only
};
CopySide source(CUDA_MEMCPY3D& c) {
  return {c.srcMemoryType, c.srcDevice, c.srcArray, c.srcHost,  c.srcXInBytes,
          c.srcY,          c.srcZ,      c.srcPitch, c.srcHeight};
}
CopySide target(CUDA_MEMCPY3D& c) {
  return {c.dstMemoryType, c.dstDevice, c.dstArray, c.dstHost,  c.dstXInBytes,
          c.dstY,          c.dstZ,      c.dstPitch, c.dstHeight};
}

CUresult check_array(const CopySide& side, const CUDA_MEMCPY3D& copy, const Session& session) {
  const auto* const array = handles().find_as<Array>(Kind::array, cuda::handle_bits(side.array));
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  if (array->session != &session) return CUDA_ERROR_NOT_SUPPORTED;
  const uint64_t texel = std::max(cuda::texel_bytes(array->shape.Format, array->shape.NumChannels), 1u);
  const bool inside = side.x % texel == 0 && copy.WidthInBytes % texel == 0 &&
                      part(side.x, copy.WidthInBytes, array->shape.Width * texel) &&
                      part(side.y, copy.Height, std::max<size_t>(array->shape.Height, 1)) &&
                      part(side.z, copy.Depth, std::max<size_t>(array->shape.Depth, 1));
  return inside ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// 0 means rows and slices without gaps.
CUresult check_memory(CopySide& side, const CUDA_MEMCPY3D& copy, Session& session) {
  for (const uint64_t number :
       {side.x, side.y, side.z, side.pitch, side.height, copy.WidthInBytes, copy.Height, copy.Depth}) {
    if (number >= kSane) return CUDA_ERROR_INVALID_VALUE;
  }
  if (side.pitch == 0) side.pitch = side.x + copy.WidthInBytes;
  if (side.height == 0) side.height = side.y + copy.Height;
  if (copy.Height > 1 && side.pitch < side.x + copy.WidthInBytes) return CUDA_ERROR_INVALID_VALUE;
  const bool empty = copy.WidthInBytes == 0 || copy.Height == 0 || copy.Depth == 0;
  uint64_t slice = 0, last = 0;
  if (!empty && (__builtin_mul_overflow(side.pitch, side.height, &slice) ||
                 __builtin_mul_overflow(slice, side.z + copy.Depth - 1, &last) ||
                 __builtin_mul_overflow(side.pitch, side.y + copy.Height - 1, &side.span) ||
                 __builtin_add_overflow(side.span, last, &side.span) ||
                 __builtin_add_overflow(side.span, side.x + copy.WidthInBytes, &side.span))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  side.on_host = side.type == CU_MEMORYTYPE_HOST;
  const uint64_t address = side.on_host ? reinterpret_cast<uintptr_t>(side.host) : side.device;
  if (!side.on_host && side.type != CU_MEMORYTYPE_DEVICE && side.type != CU_MEMORYTYPE_UNIFIED)
    return CUDA_ERROR_INVALID_VALUE;
  if (mirrors().any() && !empty) [[unlikely]] {
    // Mirrored memory is copied on the device, whichever kind the program names.
    const auto both = mirrors().find(address);
    if (both && side.span <= both->bytes - (address - both->address)) {
      if (both->session != &session) return CUDA_ERROR_NOT_SUPPORTED;
      side.type = CU_MEMORYTYPE_DEVICE;
      side.device = address;
      side.on_host = false;
      return CUDA_SUCCESS;
    }
    if (side.on_host && mirrors().overlaps(address, side.span)) return CUDA_ERROR_INVALID_VALUE;
  }
  if (side.on_host) return address != 0 || empty ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  Session* const owner = session_of(side.device, &session);
  if (!owner && host_memory().is_pinned(reinterpret_cast<const void*>(side.device), side.span))
    side.type = CU_MEMORYTYPE_UNIFIED;
  side.on_host = !owner && side.type == CU_MEMORYTYPE_UNIFIED;
  if (side.on_host || empty) return CUDA_SUCCESS;
  if (!owner) return CUDA_ERROR_INVALID_VALUE;
  if (owner != &session) return CUDA_ERROR_NOT_SUPPORTED;
  if (!is_device_range_mapped(session, side.device, side.span)) return CUDA_ERROR_INVALID_VALUE;
  side.type = CU_MEMORYTYPE_DEVICE;
  return CUDA_SUCCESS;
}

struct Checked {
  bool from_host = false, to_host = false;
  uint64_t from_span = 0, to_span = 0;
};
// Checks both sides and fills in omitted values.
CUresult check(CUDA_MEMCPY3D& copy, Session& session, Checked* checked) {
  if (copy.srcLOD != 0 || copy.dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  copy.reserved0 = copy.reserved1 = nullptr;
  CopySide from = source(copy), to = target(copy);
  for (CopySide* const side : {&from, &to}) {
    const bool array = side->type == CU_MEMORYTYPE_ARRAY;
    if (const CUresult result =
            array ? check_array(*side, copy, session) : check_memory(*side, copy, session);
        result != CUDA_SUCCESS)
      return result;
  }
  *checked = {from.on_host, to.on_host, from.span, to.span};
  return CUDA_SUCCESS;
}

// Sends the program's changes of mirrored memory before a copy.
CUresult before_copy(const CallTarget& call_target, const CUDA_MEMCPY3D& copy, const Checked& checked,
                     Mirrors::PendingWrite& use) {
  CUresult result = CUDA_SUCCESS;
  if (copy.srcMemoryType == CU_MEMORYTYPE_DEVICE) {
    result = mirrors().before_use(*call_target.context, copy.srcDevice, checked.from_span, nullptr);
  }
  if (result == CUDA_SUCCESS && copy.dstMemoryType == CU_MEMORYTYPE_DEVICE) {
    result = mirrors().before_use(*call_target.context, copy.dstDevice, checked.to_span, &use);
  }
  return result;
}

bool is_empty(const CUDA_MEMCPY3D& copy) {
  return copy.WidthInBytes == 0 || copy.Height == 0 || copy.Depth == 0;
}

// Makes a context current in this thread.
struct ScopedContext {
  explicit ScopedContext(const Context& context) { thread_state().contexts.push_back(context.handle); }
  ~ScopedContext() { thread_state().contexts.pop_back(); }
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;
};

CUresult allocate(CUdeviceptr* memory, uint64_t* most, uint64_t row, CUstream stream) {
  CUresult result = cuMemAllocAsync(memory, *most, stream);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && *most > std::max(kLeastPiece, row)) {
    *most = std::max(kLeastPiece, row);
    result = cuMemAllocAsync(memory, *most, stream);
  }
  return result;
}

// Copies through a device buffer. `up`: from the program's memory to the array. `of_host(part)` copies
// between the program's memory and the buffer.
template <class OfHost>
CUresult through_device(const CallTarget& call_target, const CUDA_MEMCPY3D& copy, bool up, CUstream stream,
                        const OfHost& of_host) {
  const uint64_t row = copy.WidthInBytes;
  uint64_t most = std::max(std::min(kPieceBytes, row * copy.Height * copy.Depth), row);
  CUdeviceptr memory = 0;
  CUresult result = allocate(&memory, &most, row, stream);
  if (result != CUDA_SUCCESS) return result;
  const uint64_t rows = std::min<uint64_t>(copy.Height, most / row);
  const uint64_t slices = rows == copy.Height ? std::min<uint64_t>(copy.Depth, most / (row * rows)) : 1;
  for (uint64_t z = 0; z < copy.Depth && result == CUDA_SUCCESS; z += slices) {
    for (uint64_t y = 0; y < copy.Height && result == CUDA_SUCCESS; y += rows) {
      CUDA_MEMCPY3D piece = copy;
      piece.Height = std::min(rows, copy.Height - y);
      piece.Depth = std::min(slices, copy.Depth - z);
      piece.srcY += y, piece.srcZ += z, piece.dstY += y, piece.dstZ += z;
      CUDA_MEMCPY3D in = piece, out = piece;
      for (const CopySide& middle : {target(in), source(out)}) {
        middle.type = CU_MEMORYTYPE_DEVICE;
        middle.device = memory;
        middle.x = middle.y = middle.z = 0;
        middle.pitch = row;
        middle.height = piece.Height;
      }
      const auto of_array = [&](CUDA_MEMCPY3D& step) {
        return rows::cuMemcpy3DAsync_v2::at(call_target, {&step, stream});
      };
      result = up ? of_host(in) : of_array(in);
      if (result == CUDA_SUCCESS) result = up ? of_array(out) : of_host(out);
    }
  }
  const CUresult freed = cuMemFreeAsync(memory, stream);
  return result == CUDA_SUCCESS ? freed : result;
}

}  // namespace

CUresult make_array_copy(const CUDA_MEMCPY3D& asked, Context& context, CopyWork* work) {
  CopyWork made{asked, {}};
  CUDA_MEMCPY3D copy = asked;
  Checked checked;
  if (const CUresult result = check(copy, *context.session, &checked); result != CUDA_SUCCESS) return result;
  made.array_copy = copy;
  made.box.from.on_device = !checked.from_host;
  made.box.to.on_device = !checked.to_host;
  made.box.width = asked.WidthInBytes;
  made.box.height = asked.Height;
  made.box.depth = asked.Depth;
  *work = made;
  return CUDA_SUCCESS;
}

uint64_t copy_array_now(Context& context, const CUDA_MEMCPY3D& copy) {
  CUstream own = nullptr;
  const bool up = copy.dstMemoryType == CU_MEMORYTYPE_ARRAY;
  CUresult result = internal_stream(context, &own);
  if (result == CUDA_SUCCESS) {
    const ScopedContext current(context);  // the thread of host functions has no current context
    result = through_device({context.session, &context}, copy, up, own, [&](const CUDA_MEMCPY3D& half) {
      CopyWork work;
      // copy_now() does not wait for earlier work of its stream, where the last piece may still be leaving
      // the buffer.
      if (const CUresult left = up ? synchronize_stream(context, own) : CUDA_SUCCESS; left != CUDA_SUCCESS)
        return left;
      const CUresult made = make_copy(half, context, &work);
      if (made == CUDA_SUCCESS) (void)copy_now(context, work.box);
      return made;
    });
  }
  if (result != CUDA_SUCCESS) context.late_error = result;
  return cuda::handle_bits(own);
}

CUresult copy_array(const CUDA_MEMCPY3D& asked, CUstream stream, bool wait) {
  return guarded([&]() -> CUresult {
    CallTarget call_target;
    if (const CUresult result = require_stream_for_work(&call_target.session, &call_target.context, stream);
        result != CUDA_SUCCESS) {
      return result;
    }
    CUDA_MEMCPY3D copy = asked;
    Checked checked;
    if (const CUresult result = check(copy, *call_target.session, &checked); result != CUDA_SUCCESS)
      return result;
    if (is_empty(copy)) return CUDA_SUCCESS;
    if (capture::any()) [[unlikely]] {
      if (wait) {
        if (const CUresult refused = capture::refuse(*call_target.context, stream); refused != CUDA_SUCCESS)
          return refused;
      } else if (const auto captured = capture::add(
                     *call_target.context, stream, CU_GRAPH_NODE_TYPE_MEMCPY, [&](NodeWork& work) {
                       return make_array_copy(asked, *call_target.context, &work.emplace<CopyWork>());
                     })) {
        return *captured;
      }
    }
    Mirrors::PendingWrite use;
    if (mirrors().any()) [[unlikely]] {
      if (const CUresult result = before_copy(call_target, copy, checked, use); result != CUDA_SUCCESS)
        return result;
    }
    if (compared_copies().any()) [[unlikely]] {
      if (const CUresult result = compared_copies().before_work(*call_target.context, stream);
          result != CUDA_SUCCESS)
        return result;
    }
    const auto of_host = [&](const CUDA_MEMCPY3D& half) { return cuMemcpy3DAsync_v2(&half, stream); };
    const CUresult result = checked.from_host || checked.to_host
                                ? through_device(call_target, copy, checked.from_host, stream, of_host)
                                : rows::cuMemcpy3DAsync_v2::at(call_target, {&copy, stream});
    return result == CUDA_SUCCESS && wait ? synchronize_stream(*call_target.context, stream) : result;
  });
}

}  // namespace gpupool::client
