// Memsets.
#include "server/softgpu/runtime/api/call.h"
#include "server/softgpu/runtime/api/copy.h"

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

// The synchronous functions wait, because the host may read pinned and managed memory right afterwards.
CUresult set(CUstream handle, bool wait, const Transfer& transfer) {
  return call_on_stream(handle, [&](Stream& stream) {
    if (transfer.destination % transfer.fill_width != 0) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result =
        check_transfer(transfer, Side::device, Side::device, accessing_device(stream.context()));
    if (result != CUDA_SUCCESS) return result;
    return wait ? transfer_now(stream, transfer) : transfer_async(stream, transfer);
  });
}

Transfer rows(CUdeviceptr address, size_t pitch, uint32_t value, uint32_t value_width, size_t width,
              size_t height) {
  Transfer transfer = Transfer::fill(address, value, value_width, width);
  transfer.height = height;
  transfer.destination_pitch = pitch;
  return transfer;
}

bool valid_rows(size_t pitch, uint32_t value_width, size_t width, size_t height) {
  if (width > SIZE_MAX / 4 || (height != 0 && pitch > SIZE_MAX / height)) return false;
  return height <= 1 || (pitch >= width * value_width && pitch % value_width == 0);
}

CUresult set_linear(CUstream stream, bool wait, CUdeviceptr address, uint32_t value, uint32_t value_width,
                    size_t count) {
  if (count > SIZE_MAX / 4) return CUDA_ERROR_INVALID_VALUE;
  return set(stream, wait, Transfer::fill(address, value, value_width, count));
}

CUresult set_rows(CUstream stream, bool wait, CUdeviceptr address, size_t pitch, uint32_t value,
                  uint32_t value_width, size_t width, size_t height) {
  if (!valid_rows(pitch, value_width, width, height)) return CUDA_ERROR_INVALID_VALUE;
  return set(stream, wait, rows(address, pitch, value, value_width, width, height));
}

}  // namespace

CUDA_EXPORT CUresult cuMemsetD8_v2(CUdeviceptr address, unsigned char value, size_t count) {
  return set_linear(nullptr, true, address, value, 1, count);
}
CUDA_EXPORT CUresult cuMemsetD16_v2(CUdeviceptr address, unsigned short value, size_t count) {
  return set_linear(nullptr, true, address, value, 2, count);
}
CUDA_EXPORT CUresult cuMemsetD32_v2(CUdeviceptr address, unsigned int value, size_t count) {
  return set_linear(nullptr, true, address, value, 4, count);
}
CUDA_EXPORT CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t count,
                                     CUstream stream) {
  return set_linear(stream, false, address, value, 1, count);
}
CUDA_EXPORT CUresult cuMemsetD16Async(CUdeviceptr address, unsigned short value, size_t count,
                                      CUstream stream) {
  return set_linear(stream, false, address, value, 2, count);
}
CUDA_EXPORT CUresult cuMemsetD32Async(CUdeviceptr address, unsigned int value, size_t count,
                                      CUstream stream) {
  return set_linear(stream, false, address, value, 4, count);
}
CUDA_EXPORT CUresult cuMemsetD2D8_v2(CUdeviceptr address, size_t pitch, unsigned char value, size_t width,
                                     size_t height) {
  return set_rows(nullptr, true, address, pitch, value, 1, width, height);
}
CUDA_EXPORT CUresult cuMemsetD2D16_v2(CUdeviceptr address, size_t pitch, unsigned short value, size_t width,
                                      size_t height) {
  return set_rows(nullptr, true, address, pitch, value, 2, width, height);
}
CUDA_EXPORT CUresult cuMemsetD2D32_v2(CUdeviceptr address, size_t pitch, unsigned int value, size_t width,
                                      size_t height) {
  return set_rows(nullptr, true, address, pitch, value, 4, width, height);
}
CUDA_EXPORT CUresult cuMemsetD2D8Async(CUdeviceptr address, size_t pitch, unsigned char value, size_t width,
                                       size_t height, CUstream stream) {
  return set_rows(stream, false, address, pitch, value, 1, width, height);
}
CUDA_EXPORT CUresult cuMemsetD2D16Async(CUdeviceptr address, size_t pitch, unsigned short value, size_t width,
                                        size_t height, CUstream stream) {
  return set_rows(stream, false, address, pitch, value, 2, width, height);
}
CUDA_EXPORT CUresult cuMemsetD2D32Async(CUdeviceptr address, size_t pitch, unsigned int value, size_t width,
                                        size_t height, CUstream stream) {
  return set_rows(stream, false, address, pitch, value, 4, width, height);
}
