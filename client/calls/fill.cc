// Fills. To the caller the synchronous ones are asynchronous too for device memory, so each is its ...Async row.
#include "client/call.h"
#include "client/calls/mapped.h"
#include "protocol/cuda/exports.h"

using namespace gpupool::client;

namespace {

// Before the row is queued: its error would surface later, and the worker sees only whole mappings.
CUresult check(CUdeviceptr address, uint64_t pitch, uint64_t width, uint64_t height, uint64_t item, bool* nothing) {
  Session* session = nullptr;
  Context* context = nullptr;
  if (const CUresult result = ready_with_context(&session, &context); result != CUDA_SUCCESS) return result;
  if (const CUresult result = session->before_call(context); result != CUDA_SUCCESS) return result;
  *nothing = width == 0 || height == 0;
  if (*nothing) return CUDA_SUCCESS;
  uint64_t bytes = 0, rows = 0;
  if (address % item != 0 || __builtin_mul_overflow(width, item, &bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (height > 1 && (pitch < bytes || pitch % item != 0)) return CUDA_ERROR_INVALID_VALUE;
  if (__builtin_mul_overflow(height - 1, pitch, &rows) || __builtin_add_overflow(rows, bytes, &bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return is_mapped(*session, address, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

template <class Row, class T>
CUresult fill(CUdeviceptr address, T value, size_t count, CUstream stream, bool per_thread) {
  return guarded([&]() -> CUresult {
    bool nothing = false;
    const CUresult result = check(address, 0, count, 1, sizeof(T), &nothing);
    if (result != CUDA_SUCCESS || nothing) return result;
    return per_thread ? Row::forward_per_thread(address, value, count, stream) : Row::forward(address, value, count, stream);
  });
}

template <class Row, class T>
CUresult fill_2d(CUdeviceptr address, size_t pitch, T value, size_t width, size_t height, CUstream stream, bool per_thread) {
  return guarded([&]() -> CUresult {
    bool nothing = false;
    const CUresult result = check(address, pitch, width, height, sizeof(T), &nothing);
    if (result != CUDA_SUCCESS || nothing) return result;
    return per_thread ? Row::forward_per_thread(address, pitch, value, width, height, stream)
                      : Row::forward(address, pitch, value, width, height, stream);
  });
}

}  // namespace

#define FILL(function, row, type)                                                                   \
  CUDA_EXPORT CUresult function(CUdeviceptr address, type value, size_t count) {                    \
    return fill<rows::row>(address, value, count, nullptr, false);                                  \
  }                                                                                                 \
  CUDA_EXPORT CUresult function##_ptds(CUdeviceptr address, type value, size_t count) {             \
    return fill<rows::row>(address, value, count, nullptr, true);                                   \
  }                                                                                                 \
  CUDA_EXPORT CUresult row(CUdeviceptr address, type value, size_t count, CUstream stream) {        \
    return fill<rows::row>(address, value, count, stream, false);                                   \
  }                                                                                                 \
  CUDA_EXPORT CUresult row##_ptsz(CUdeviceptr address, type value, size_t count, CUstream stream) { \
    return fill<rows::row>(address, value, count, stream, true);                                    \
  }
FILL(cuMemsetD8_v2, cuMemsetD8Async, unsigned char)
FILL(cuMemsetD16_v2, cuMemsetD16Async, unsigned short)
FILL(cuMemsetD32_v2, cuMemsetD32Async, unsigned int)
#undef FILL

#define BOX CUdeviceptr address, size_t pitch
#define FILL_2D(function, row, type)                                                               \
  CUDA_EXPORT CUresult function(BOX, type value, size_t width, size_t height) {                    \
    return fill_2d<rows::row>(address, pitch, value, width, height, nullptr, false);               \
  }                                                                                                \
  CUDA_EXPORT CUresult function##_ptds(BOX, type value, size_t width, size_t height) {             \
    return fill_2d<rows::row>(address, pitch, value, width, height, nullptr, true);                \
  }                                                                                                \
  CUDA_EXPORT CUresult row(BOX, type value, size_t width, size_t height, CUstream stream) {        \
    return fill_2d<rows::row>(address, pitch, value, width, height, stream, false);                \
  }                                                                                                \
  CUDA_EXPORT CUresult row##_ptsz(BOX, type value, size_t width, size_t height, CUstream stream) { \
    return fill_2d<rows::row>(address, pitch, value, width, height, stream, true);                 \
  }
FILL_2D(cuMemsetD2D8_v2, cuMemsetD2D8Async, unsigned char)
FILL_2D(cuMemsetD2D16_v2, cuMemsetD2D16Async, unsigned short)
FILL_2D(cuMemsetD2D32_v2, cuMemsetD2D32Async, unsigned int)
#undef FILL_2D
#undef BOX
