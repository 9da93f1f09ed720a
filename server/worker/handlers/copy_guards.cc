#include "server/worker/handlers/copy_guards.h"

#include <algorithm>
#include <optional>
#include <span>

#include "protocol/calls/box.h"
#include "server/worker/handlers/array_guards.h"
#include "server/worker/handlers/guards.h"
#include "server/worker/session/session.h"

namespace gpupool::worker::guards {
namespace {

#define REAL(name) t_session->guarded.name

// Fills and copies within the device count as GPU work, like kernels.
template <class F>
CUresult run_work(CUstream stream, uint64_t bytes, F&& call) {
  StreamState* const state = t_session->contexts.find_stream(stream);
  if (!state) return call();
  return t_session->compute.run(*state, transfer_kind(bytes), [&] {
    return t_session->timeline.measure(*state, {wire::TimelineKind::work_on_device, bytes}, call);
  });
}

bool owns_bytes(CUdeviceptr address, uint64_t size) {
  return t_session->memory.owns(address, size);
}

// Returns contexts on the devices of both sides, because a copy must not depend on peer access. Returns false
// if both sides are on the stream's device, or if a device is unknown.
bool contexts_of(CUstream stream, CUdeviceptr to, CUdeviceptr from, CUcontext* to_context,
                 CUcontext* from_context) {
  const int to_device = t_session->memory.device_of(to), from_device = t_session->memory.device_of(from);
  const StreamState* const state = t_session->contexts.find_stream(stream);
  if (!state || to_device < 0 || from_device < 0 ||
      (to_device == from_device && to_device == state->context->device))
    return false;
  const ContextState* const there = t_session->contexts.find_on(to_device);
  const ContextState* const here = t_session->contexts.find_on(from_device);
  if (!there || !here) return false;
  *to_context = there->object;
  *from_context = here->object;
  return true;
}

bool is_device_side(CUmemorytype type) {
  return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED;
}

// Checks the extent of one side of a 2D or 3D copy, which starts at `x` bytes, `y` rows and `z` planes.
bool owns_box(CUdeviceptr address, uint64_t pitch, uint64_t height, uint64_t x, uint64_t y, uint64_t z,
              uint64_t width, uint64_t rows, uint64_t planes) {
  if (width == 0 || rows == 0 || planes == 0) return true;
  uint64_t plane = 0;
  uint64_t last = 0;
  uint64_t part = 0;
  if (__builtin_mul_overflow(pitch, height, &plane)) return false;
  if (__builtin_add_overflow(z, planes - 1, &last) || __builtin_mul_overflow(last, plane, &part))
    return false;
  uint64_t extent = part;
  if (__builtin_add_overflow(y, rows - 1, &last) || __builtin_mul_overflow(last, pitch, &part)) return false;
  if (__builtin_add_overflow(extent, part, &extent) || __builtin_add_overflow(extent, x, &extent) ||
      __builtin_add_overflow(extent, width, &extent)) {
    return false;
  }
  return owns_bytes(address, extent);
}

// One side of a 2D or 3D copy; check_end() changes it to values that are safe to pass to the driver.
struct BoxEnd {
  CUmemorytype& type;
  const void** host;
  CUdeviceptr& device;
  CUarray& array;
  uint64_t pitch, height, x, y, z;
};

template <class Copy>
CUresult check_end(const BoxEnd& end, const Copy& copy, uint64_t depth) {
  *end.host = nullptr;
  if (end.type == CU_MEMORYTYPE_ARRAY) {
    end.device = 0;
    return resolve_array(end.array) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  }
  if (!is_device_side(end.type)) return CUDA_ERROR_NOT_SUPPORTED;
  end.type = CU_MEMORYTYPE_DEVICE;
  end.array = nullptr;
  // Pitch 0 is allowed for a single row.
  const bool owned = owns_box(end.device, end.pitch ? end.pitch : copy.WidthInBytes, end.height, end.x, end.y,
                              end.z, copy.WidthInBytes, copy.Height, depth);
  return owned ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Converts a checked copy that involves memory of another device than the stream's. Returns nullopt if it
// does not, or if an array is involved.
std::optional<CUDA_MEMCPY3D_PEER> between_devices(CUstream stream, const CUDA_MEMCPY3D& copy) {
  CUDA_MEMCPY3D_PEER peers{};
  const bool memory =
      copy.dstMemoryType == CU_MEMORYTYPE_DEVICE && copy.srcMemoryType == CU_MEMORYTYPE_DEVICE;
  if (!memory || !REAL(cuMemcpy3DPeerAsync) ||
      !contexts_of(stream, copy.dstDevice, copy.srcDevice, &peers.dstContext, &peers.srcContext))
    return std::nullopt;
  cuda::set_box(peers, copy);
  return peers;
}

}  // namespace

CUresult set_d8(CUdeviceptr address, unsigned char value, size_t count, CUstream stream) {
  return run_work(stream, count, [&] { return REAL(cuMemsetD8Async)(address, value, count, stream); });
}

CUresult set_d16(CUdeviceptr address, unsigned short value, size_t count, CUstream stream) {
  return run_work(stream, count * 2, [&] { return REAL(cuMemsetD16Async)(address, value, count, stream); });
}

CUresult set_d32(CUdeviceptr address, unsigned value, size_t count, CUstream stream) {
  return run_work(stream, count * 4, [&] { return REAL(cuMemsetD32Async)(address, value, count, stream); });
}

CUresult set_2d8(CUdeviceptr address, size_t pitch, unsigned char value, size_t width, size_t rows,
                 CUstream stream) {
  return run_work(stream, width * rows,
                  [&] { return REAL(cuMemsetD2D8Async)(address, pitch, value, width, rows, stream); });
}

CUresult set_2d16(CUdeviceptr address, size_t pitch, unsigned short value, size_t width, size_t rows,
                  CUstream stream) {
  return run_work(stream, width * rows * 2,
                  [&] { return REAL(cuMemsetD2D16Async)(address, pitch, value, width, rows, stream); });
}

CUresult set_2d32(CUdeviceptr address, size_t pitch, unsigned value, size_t width, size_t rows,
                  CUstream stream) {
  return run_work(stream, width * rows * 4,
                  [&] { return REAL(cuMemsetD2D32Async)(address, pitch, value, width, rows, stream); });
}

CUresult copy_bytes(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  return run_work(stream, size, [&] {
    CUcontext there = nullptr, here = nullptr;
    if (!REAL(cuMemcpyPeerAsync) || !contexts_of(stream, to, from, &there, &here))
      return REAL(cuMemcpyDtoDAsync_v2)(to, from, size, stream);
    return REAL(cuMemcpyPeerAsync)(to, there, from, here, size, stream);
  });
}

CUresult copy_peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                   size_t size, CUstream stream) {
  return run_work(stream, size,
                  [&] { return REAL(cuMemcpyPeerAsync)(to, to_context, from, from_context, size, stream); });
}

CUresult check_copy(CUDA_MEMCPY3D& copy) {
  if (copy.srcLOD != 0 || copy.dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  copy.reserved0 = copy.reserved1 = nullptr;
  const void* host = nullptr;
  const CUresult result =
      check_end({copy.srcMemoryType, &copy.srcHost, copy.srcDevice, copy.srcArray, copy.srcPitch,
                 copy.srcHeight ? copy.srcHeight : copy.Height, copy.srcXInBytes, copy.srcY, copy.srcZ},
                copy, copy.Depth);
  copy.dstHost = nullptr;
  if (result != CUDA_SUCCESS) return result;
  return check_end({copy.dstMemoryType, &host, copy.dstDevice, copy.dstArray, copy.dstPitch,
                    copy.dstHeight ? copy.dstHeight : copy.Height, copy.dstXInBytes, copy.dstY, copy.dstZ},
                   copy, copy.Depth);
}

CUresult copy_2d(const CUDA_MEMCPY2D* asked, CUstream stream) {
  if (!asked) return CUDA_ERROR_INVALID_VALUE;
  CUDA_MEMCPY3D box = cuda::boxed(*asked);
  if (const CUresult result = check_copy(box); result != CUDA_SUCCESS) return result;
  CUDA_MEMCPY2D copy{};
  cuda::set_rectangle(copy, box);
  box.srcHeight = box.srcY + box.Height;
  box.dstHeight = box.dstY + box.Height;
  return run_work(stream, copy.WidthInBytes * copy.Height, [&] {
    const auto peers = between_devices(stream, box);
    return peers ? REAL(cuMemcpy3DPeerAsync)(&*peers, stream) : REAL(cuMemcpy2DAsync_v2)(&copy, stream);
  });
}

CUresult copy_3d(const CUDA_MEMCPY3D* asked, CUstream stream) {
  if (!asked) return CUDA_ERROR_INVALID_VALUE;
  CUDA_MEMCPY3D copy = *asked;
  if (const CUresult result = check_copy(copy); result != CUDA_SUCCESS) return result;
  return run_work(stream, copy.WidthInBytes * copy.Height * copy.Depth, [&] {
    const auto peers = between_devices(stream, copy);
    return peers ? REAL(cuMemcpy3DPeerAsync)(&*peers, stream) : REAL(cuMemcpy3DAsync_v2)(&copy, stream);
  });
}

#if CUDA_VERSION >= 12080
// The decompression engine writes as many bytes as the input yields, within the address space of this
// session's contexts, as a kernel could.
CUresult decompress(CUmemDecompressParams* operations, size_t count, unsigned flags, size_t* failed,
                    CUstream stream) {
  if (!operations) return CUDA_ERROR_INVALID_VALUE;
  uint64_t bytes = 0;
  for (const CUmemDecompressParams& one : std::span(operations, count)) {
    const auto at = [](const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); };
    if (!owns_bytes(at(one.src), one.srcNumBytes) ||
        !owns_bytes(at(one.dst), std::max<uint64_t>(one.dstNumBytes, 1)) ||
        !owns_bytes(at(one.dstActBytes), sizeof *one.dstActBytes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    // Each is within the session's memory, so the sum cannot overflow.
    bytes += one.srcNumBytes + one.dstNumBytes;
  }
  return run_work(stream, bytes,
                  [&] { return REAL(cuMemBatchDecompressAsync)(operations, count, flags, failed, stream); });
}
#endif

}  // namespace gpupool::worker::guards
