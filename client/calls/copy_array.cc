// Copies from and to arrays (client/array.h).
#include <algorithm>

#include "client/array.h"
#include "client/bridge.h"
#include "client/calls/mapped.h"
#include "client/capture.h"
#include "protocol/cuda/array_bytes.h"
#include "protocol/cuda/exports.h"

namespace gpupool::client {
namespace {

constexpr uint64_t kPieceBytes = 4u << 20;   // of device memory that a copy goes through
constexpr uint64_t kLeastPiece = 64u << 10;  // where that is not to be had
constexpr uint64_t kSane = uint64_t{1} << 46;

bool part(uint64_t first, uint64_t count, uint64_t of) { return first <= of && count <= of - first; }

// One end of a copy.
struct Side {
  CUmemorytype& type;
  CUdeviceptr& device;
  CUarray& array;
  size_t &x, &y, &z, &pitch, &height;
  bool on_host = false;
};
Side source(CUDA_MEMCPY3D& c) { return {c.srcMemoryType, c.srcDevice, c.srcArray, c.srcXInBytes, c.srcY, c.srcZ, c.srcPitch, c.srcHeight}; }
Side target(CUDA_MEMCPY3D& c) { return {c.dstMemoryType, c.dstDevice, c.dstArray, c.dstXInBytes, c.dstY, c.dstZ, c.dstPitch, c.dstHeight}; }

CUresult check_array(const Side& side, const CUDA_MEMCPY3D& copy, const Session& session) {
  const auto* const array = handles().find_as<Array>(Kind::array, cuda::handle_bits(side.array));
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  if (array->session != &session) return CUDA_ERROR_NOT_SUPPORTED;
  const uint64_t texel = std::max(cuda::texel_bytes(array->shape.Format, array->shape.NumChannels), 1u);
  const bool inside = side.x % texel == 0 && copy.WidthInBytes % texel == 0 && part(side.x, copy.WidthInBytes, array->shape.Width * texel) &&
                      part(side.y, copy.Height, std::max<size_t>(array->shape.Height, 1)) &&
                      part(side.z, copy.Depth, std::max<size_t>(array->shape.Depth, 1));
  return inside ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// What is left 0 means rows and slices without gaps.
CUresult check_memory(Side& side, const CUDA_MEMCPY3D& copy, Session& session) {
  for (const uint64_t number : {side.x, side.y, side.z, side.pitch, side.height, copy.WidthInBytes, copy.Height, copy.Depth}) {
    if (number >= kSane) return CUDA_ERROR_INVALID_VALUE;
  }
  if (side.pitch == 0) side.pitch = side.x + copy.WidthInBytes;
  if (side.height == 0) side.height = side.y + copy.Height;
  if (copy.Height > 1 && side.pitch < side.x + copy.WidthInBytes) return CUDA_ERROR_INVALID_VALUE;
  side.on_host = side.type == CU_MEMORYTYPE_HOST;
  if (side.on_host) return CUDA_SUCCESS;
  if (side.type != CU_MEMORYTYPE_DEVICE && side.type != CU_MEMORYTYPE_UNIFIED) return CUDA_ERROR_INVALID_VALUE;
  Session* const owner = session_of(side.device, &session);
  side.on_host = !owner && side.type == CU_MEMORYTYPE_UNIFIED;
  if (side.on_host || copy.WidthInBytes == 0 || copy.Height == 0 || copy.Depth == 0) return CUDA_SUCCESS;
  if (!owner) return CUDA_ERROR_INVALID_VALUE;
  if (owner != &session) return CUDA_ERROR_NOT_SUPPORTED;
  uint64_t slice = 0, last = 0, span = 0;
  if (__builtin_mul_overflow(side.pitch, side.height, &slice) || __builtin_mul_overflow(slice, side.z + copy.Depth - 1, &last) ||
      __builtin_mul_overflow(side.pitch, side.y + copy.Height - 1, &span) || __builtin_add_overflow(span, last, &span) ||
      __builtin_add_overflow(span, side.x + copy.WidthInBytes, &span) || !is_mapped(session, side.device, span)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  side.type = CU_MEMORYTYPE_DEVICE;
  return CUDA_SUCCESS;
}

// Fills in what was left out.
CUresult check(CUDA_MEMCPY3D& copy, Session& session, bool* from_host, bool* to_host) {
  if (copy.srcLOD != 0 || copy.dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  copy.reserved0 = copy.reserved1 = nullptr;
  Side from = source(copy), to = target(copy);
  for (Side* const side : {&from, &to}) {
    const bool array = side->type == CU_MEMORYTYPE_ARRAY;
    if (const CUresult result = array ? check_array(*side, copy, session) : check_memory(*side, copy, session); result != CUDA_SUCCESS) return result;
  }
  *from_host = from.on_host;
  *to_host = to.on_host;
  return CUDA_SUCCESS;
}

bool is_empty(const CUDA_MEMCPY3D& copy) { return copy.WidthInBytes == 0 || copy.Height == 0 || copy.Depth == 0; }

CUresult allocate(CUdeviceptr* memory, uint64_t* most, uint64_t row, CUstream stream) {
  CUresult result = cuMemAllocAsync(memory, *most, stream);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && *most > std::max(kLeastPiece, row)) {
    *most = std::max(kLeastPiece, row);
    result = cuMemAllocAsync(memory, *most, stream);
  }
  return result;
}

// `up`: from the program's memory to the array.
CUresult through_device(const Place& place, const CUDA_MEMCPY3D& copy, bool up, CUstream stream) {
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
      for (const Side& middle : {target(in), source(out)}) {
        middle.type = CU_MEMORYTYPE_DEVICE;
        middle.device = memory;
        middle.x = middle.y = middle.z = 0;
        middle.pitch = row;
        middle.height = piece.Height;
      }
      const auto of_array = [&](CUDA_MEMCPY3D& step) { return rows::cuMemcpy3DAsync_v2::at(place, {&step, stream}); };
      result = up ? cuMemcpy3DAsync_v2(&in, stream) : of_array(in);
      if (result == CUDA_SUCCESS) result = up ? of_array(out) : cuMemcpy3DAsync_v2(&out, stream);
    }
  }
  const CUresult freed = cuMemFreeAsync(memory, stream);
  return result == CUDA_SUCCESS ? freed : result;
}

}  // namespace

CUresult make_array_copy(const CUDA_MEMCPY3D& asked, Context& context, CopyWork* work) {
  CopyWork made{asked, {}};
  CUDA_MEMCPY3D checked = asked;
  bool from_host = false, to_host = false;
  if (const CUresult result = check(checked, *context.session, &from_host, &to_host); result != CUDA_SUCCESS) return result;
  if (from_host || to_host) return CUDA_ERROR_NOT_SUPPORTED;
  made.array_copy = checked;
  made.box.from.on_device = made.box.to.on_device = true;
  made.box.width = asked.WidthInBytes;
  made.box.height = asked.Height;
  made.box.depth = asked.Depth;
  *work = made;
  return CUDA_SUCCESS;
}

CUresult copy_array(const CUDA_MEMCPY3D& asked, CUstream stream, bool wait) {
  return guarded([&]() -> CUresult {
    Place place;
    if (const CUresult result = ready_with_stream(&place.session, &place.context, stream); result != CUDA_SUCCESS) return result;
    CUDA_MEMCPY3D copy = asked;
    bool from_host = false, to_host = false;
    if (const CUresult result = check(copy, *place.session, &from_host, &to_host); result != CUDA_SUCCESS) return result;
    if (is_empty(copy)) return CUDA_SUCCESS;
    if (capture::any()) [[unlikely]] {
      if (wait) {
        if (const CUresult refused = capture::refuse(*place.context, stream); refused != CUDA_SUCCESS) return refused;
      } else if (const auto captured = capture::add(*place.context, stream, CU_GRAPH_NODE_TYPE_MEMCPY, [&](NodeWork& work) {
                   return make_array_copy(asked, *place.context, &work.emplace<CopyWork>());
                 })) {
        return *captured;
      }
    }
    const CUresult result = from_host || to_host ? through_device(place, copy, from_host, stream)
                                                 : rows::cuMemcpy3DAsync_v2::at(place, {&copy, stream});
    return result == CUDA_SUCCESS && wait ? synchronize_stream(*place.context, stream) : result;
  });
}

}  // namespace gpupool::client
