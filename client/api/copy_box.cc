#include "client/api/copy_box.h"

#include <cstring>

#include "client/api/device_range.h"
#include "client/memory/host_memory.h"
#include "client/memory/mirrors.h"

namespace gpupool::client {
namespace {

// Computes z * slice + y * pitch + x; false on overflow.
bool offset_of(uint64_t x, uint64_t y, uint64_t pitch, uint64_t z, uint64_t slice, uint64_t* offset) {
  uint64_t rows = 0;
  return !__builtin_mul_overflow(z, slice, offset) && !__builtin_mul_overflow(y, pitch, &rows) &&
         !__builtin_add_overflow(*offset, rows, offset) && !__builtin_add_overflow(*offset, x, offset);
}

// Makes an end of cuMemcpy2D or 3D; arrays are handled in client/memory/array.h.
CUresult make_end(CUmemorytype type, const void* host, CUdeviceptr device, uint64_t pitch, uint64_t slice,
                  uint64_t offset, CopyEnd* end) {
  switch (type) {
    case CU_MEMORYTYPE_HOST: *end = {false, address_of(host) + offset, pitch, slice}; return CUDA_SUCCESS;
    case CU_MEMORYTYPE_DEVICE: *end = {true, device + offset, pitch, slice}; return CUDA_SUCCESS;
    case CU_MEMORYTYPE_UNIFIED:
      *end = {is_device(device), device + offset, pitch, slice};
      return CUDA_SUCCESS;
    case CU_MEMORYTYPE_ARRAY: break;
  }
  return CUDA_ERROR_INVALID_VALUE;
}
}  // namespace

CopyBox make_box(bool from_device, uint64_t from, bool to_device, uint64_t to, uint64_t bytes) {
  CopyBox box;
  box.from = {from_device, from, bytes, bytes};
  box.to = {to_device, to, bytes, bytes};
  box.width = bytes;
  return box;
}

CUresult make_box(const CUDA_MEMCPY2D& copy, CopyBox& box) {
  box.width = copy.WidthInBytes;
  box.height = copy.Height;
  const uint64_t from_pitch = copy.srcPitch ? copy.srcPitch : box.width + copy.srcXInBytes;
  const uint64_t to_pitch = copy.dstPitch ? copy.dstPitch : box.width + copy.dstXInBytes;
  uint64_t from_offset = 0, to_offset = 0;
  if (!offset_of(copy.srcXInBytes, copy.srcY, from_pitch, 0, 0, &from_offset) ||
      !offset_of(copy.dstXInBytes, copy.dstY, to_pitch, 0, 0, &to_offset)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUresult result =
      make_end(copy.srcMemoryType, copy.srcHost, copy.srcDevice, from_pitch, 0, from_offset, &box.from);
  if (result != CUDA_SUCCESS) return result;
  return make_end(copy.dstMemoryType, copy.dstHost, copy.dstDevice, to_pitch, 0, to_offset, &box.to);
}

CUresult make_box(const CUDA_MEMCPY3D& copy, CopyBox& box) {
  if (copy.srcLOD != 0 || copy.dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  box.width = copy.WidthInBytes;
  box.height = copy.Height;
  box.depth = copy.Depth;
  // 0 means rows and slices without gaps.
  const uint64_t from_pitch = copy.srcPitch ? copy.srcPitch : box.width + copy.srcXInBytes;
  const uint64_t to_pitch = copy.dstPitch ? copy.dstPitch : box.width + copy.dstXInBytes;
  uint64_t from_slice = 0, to_slice = 0, from_offset = 0, to_offset = 0;
  if (__builtin_mul_overflow(from_pitch, copy.srcHeight ? copy.srcHeight : copy.srcY + box.height,
                             &from_slice) ||
      __builtin_mul_overflow(to_pitch, copy.dstHeight ? copy.dstHeight : copy.dstY + box.height, &to_slice) ||
      !offset_of(copy.srcXInBytes, copy.srcY, from_pitch, copy.srcZ, from_slice, &from_offset) ||
      !offset_of(copy.dstXInBytes, copy.dstY, to_pitch, copy.dstZ, to_slice, &to_offset)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUresult result = make_end(copy.srcMemoryType, copy.srcHost, copy.srcDevice, from_pitch, from_slice,
                                   from_offset, &box.from);
  if (result != CUDA_SUCCESS) return result;
  return make_end(copy.dstMemoryType, copy.dstHost, copy.dstDevice, to_pitch, to_slice, to_offset, &box.to);
}

CUDA_MEMCPY3D describe(const CopyBox& box) {
  CUDA_MEMCPY3D params{};
  params.srcMemoryType = params.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  params.srcDevice = box.from.address;
  params.srcPitch = box.from.pitch;
  params.srcHeight = box.from.pitch ? box.from.slice / box.from.pitch : 0;
  params.dstDevice = box.to.address;
  params.dstPitch = box.to.pitch;
  params.dstHeight = box.to.pitch ? box.to.slice / box.to.pitch : 0;
  params.WidthInBytes = box.width;
  params.Height = box.height;
  params.Depth = box.depth;
  return params;
}

uint64_t span_of(const CopyBox& box, const CopyEnd& end) {
  uint64_t slices = 0, rows = 0, span = 0;
  if (__builtin_mul_overflow(box.depth - 1, end.slice, &slices) ||
      __builtin_mul_overflow(box.height - 1, end.pitch, &rows) ||
      __builtin_add_overflow(slices, rows, &span) || __builtin_add_overflow(span, box.width, &span)) {
    return UINT64_MAX;
  }
  return span;
}

CUresult check_ends(CopyBox& box, Session& own, bool& between_servers) {
  for (CopyEnd* end : {&box.from, &box.to}) {
    if (box.height > 1 && end->pitch < box.width) return CUDA_ERROR_INVALID_VALUE;
    const uint64_t span = span_of(box, *end);
    // With unified addressing the address decides, even if the program calls device memory host memory (Warp
    // does).
    if (!end->on_device && session_of(end->address, &own)) end->on_device = true;
    if (mirrors().any() && span != UINT64_MAX) [[unlikely]] {
      // Mirrored memory is copied on the device, whichever kind the program names.
      if (const auto both = mirrors().find(end->address);
          both && span <= both->bytes - (end->address - both->address)) {
        end->on_device = true;
        if (!both->managed && both->session != &own) return CUDA_ERROR_NOT_SUPPORTED;
        if (!both->managed) continue;
      } else if (!end->on_device && mirrors().overlaps(end->address, span)) {
        return CUDA_ERROR_INVALID_VALUE;
      }
    }
    Session* const session = end->on_device ? session_of(end->address, &own) : nullptr;
    // Pinned memory may be named as device memory.
    if (end->on_device && !session && span != UINT64_MAX &&
        host_memory().is_pinned(host_pointer(end->address), span))
      end->on_device = false;
    if (end->on_device ? !session || !is_device_range_mapped(*session, end->address, span)
                       : end->address == 0 || span == UINT64_MAX) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (!session || session == &own) continue;
    between_servers = true;
    end->context = context_of(*session, end->address);
    if (!end->context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  return CUDA_SUCCESS;
}

void move_rows(const CopyBox& box) {
  for (uint64_t z = 0; z < box.depth; ++z) {
    for (uint64_t y = 0; y < box.height; ++y) {
      std::memmove(host_pointer(box.to.address + z * box.to.slice + y * box.to.pitch),
                   host_pointer(box.from.address + z * box.from.slice + y * box.from.pitch), box.width);
    }
  }
}

}  // namespace gpupool::client
