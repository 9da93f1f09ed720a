// The first versions of functions that have newer ones. If only the name changed, they call the newer
// function. If they are from the time of 32-bit addresses, they return sizes above 32 bits as the largest
// 32-bit number, and fail if they would return an address above 32 bits: with CUDA_ERROR_OUT_OF_MEMORY for
// new memory, which is freed again, else with CUDA_ERROR_INVALID_VALUE.
#include <algorithm>
#include <limits>

#include "protocol/calls/box.h"
#include "protocol/driver/exports.h"

namespace {

using Narrow = unsigned int;
static_assert(sizeof(CUdeviceptr_v1) == sizeof(Narrow));

bool fits(CUdeviceptr address) {
  return address <= std::numeric_limits<Narrow>::max();
}
Narrow narrow_size(size_t size) {
  return static_cast<Narrow>(std::min<size_t>(size, std::numeric_limits<Narrow>::max()));
}

// Returns the address of new memory, or frees the memory if the address does not fit 32 bits.
CUresult return_address_or_free(CUdeviceptr address, CUdeviceptr_v1* to) {
  if (to && fits(address)) {
    *to = static_cast<CUdeviceptr_v1>(address);
    return CUDA_SUCCESS;
  }
  cuMemFree_v2(address);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_MEMCPY2D widen(const CUDA_MEMCPY2D_v1& copy) {
  CUDA_MEMCPY2D wide{};
  gpupool::cuda::set_rectangle(wide, copy);
  return wide;
}

CUDA_MEMCPY3D widen(const CUDA_MEMCPY3D_v1& copy) {
  CUDA_MEMCPY3D wide{};
  gpupool::cuda::set_box(wide, copy);
  return wide;
}

template <class Function, class Copy, class... Stream>
CUresult call_widened(Function newer, const Copy* copy, Stream... stream) {
  if (!copy) return newer(nullptr, stream...);
  const auto wide = widen(*copy);
  return newer(&wide, stream...);
}

}  // namespace

// --- Older names ---

CUDA_EXPORT CUresult cuCtxCreate(CUcontext* context, unsigned int flags, CUdevice device) {
  return cuCtxCreate_v2(context, flags, device);
}
CUDA_EXPORT CUresult cuCtxDestroy(CUcontext context) {
  return cuCtxDestroy_v2(context);
}
CUDA_EXPORT CUresult cuCtxPushCurrent(CUcontext context) {
  return cuCtxPushCurrent_v2(context);
}
CUDA_EXPORT CUresult cuCtxPopCurrent(CUcontext* context) {
  return cuCtxPopCurrent_v2(context);
}
CUDA_EXPORT CUresult cuStreamDestroy(CUstream stream) {
  return cuStreamDestroy_v2(stream);
}
CUDA_EXPORT CUresult cuEventDestroy(CUevent event) {
  return cuEventDestroy_v2(event);
}
CUDA_EXPORT CUresult cuMemHostRegister(void* memory, size_t size, unsigned int flags) {
  return cuMemHostRegister_v2(memory, size, flags);
}

// --- 32-bit versions ---

CUDA_EXPORT CUresult cuDeviceTotalMem(unsigned int* bytes, CUdevice device) {
  size_t wide = 0;
  const CUresult result = cuDeviceTotalMem_v2(bytes ? &wide : nullptr, device);
  if (result == CUDA_SUCCESS) *bytes = narrow_size(wide);
  return result;
}

CUDA_EXPORT CUresult cuMemGetInfo(unsigned int* free, unsigned int* total) {
  size_t wide_free = 0, wide_total = 0;
  const CUresult result = cuMemGetInfo_v2(free ? &wide_free : nullptr, total ? &wide_total : nullptr);
  if (result != CUDA_SUCCESS) return result;
  *free = narrow_size(wide_free);
  *total = narrow_size(wide_total);
  return CUDA_SUCCESS;
}

CUDA_EXPORT CUresult cuModuleGetGlobal(CUdeviceptr_v1* address, unsigned int* bytes, CUmodule module,
                                       const char* name) {
  CUdeviceptr wide = 0;
  size_t size = 0;
  const CUresult result =
      cuModuleGetGlobal_v2(address ? &wide : nullptr, bytes ? &size : nullptr, module, name);
  if (result != CUDA_SUCCESS) return result;
  if (address && !fits(wide)) return CUDA_ERROR_INVALID_VALUE;
  if (address) *address = static_cast<CUdeviceptr_v1>(wide);
  if (bytes) *bytes = narrow_size(size);
  return CUDA_SUCCESS;
}

CUDA_EXPORT CUresult cuMemAlloc(CUdeviceptr_v1* address, unsigned int bytes) {
  CUdeviceptr wide = 0;
  const CUresult result = cuMemAlloc_v2(address ? &wide : nullptr, bytes);
  return result == CUDA_SUCCESS ? return_address_or_free(wide, address) : result;
}

CUDA_EXPORT CUresult cuMemAllocPitch(CUdeviceptr_v1* address, unsigned int* pitch, unsigned int width,
                                     unsigned int height, unsigned int element_bytes) {
  CUdeviceptr wide = 0;
  size_t wide_pitch = 0;
  CUresult result = cuMemAllocPitch_v2(address ? &wide : nullptr, pitch ? &wide_pitch : nullptr, width,
                                       height, element_bytes);
  if (result == CUDA_SUCCESS) result = return_address_or_free(wide, address);
  if (result == CUDA_SUCCESS && pitch) *pitch = narrow_size(wide_pitch);
  return result;
}

CUDA_EXPORT CUresult cuMemFree(CUdeviceptr_v1 address) {
  return cuMemFree_v2(address);
}

CUDA_EXPORT CUresult cuMemGetAddressRange(CUdeviceptr_v1* base, unsigned int* size, CUdeviceptr_v1 address) {
  CUdeviceptr wide = 0;
  size_t wide_size = 0;
  const CUresult result = cuMemGetAddressRange_v2(&wide, &wide_size, address);
  if (result != CUDA_SUCCESS) return result;
  if (!fits(wide)) return CUDA_ERROR_INVALID_VALUE;
  if (base) *base = static_cast<CUdeviceptr_v1>(wide);
  if (size) *size = narrow_size(wide_size);
  return CUDA_SUCCESS;
}

CUDA_EXPORT CUresult cuMemAllocHost(void** memory, unsigned int bytes) {
  return cuMemAllocHost_v2(memory, bytes);
}

CUDA_EXPORT CUresult cuMemHostGetDevicePointer(CUdeviceptr_v1* address, void* memory, unsigned int flags) {
  CUdeviceptr wide = 0;
  const CUresult result = cuMemHostGetDevicePointer_v2(address ? &wide : nullptr, memory, flags);
  if (result != CUDA_SUCCESS) return result;
  if (!address || !fits(wide)) return CUDA_ERROR_INVALID_VALUE;
  *address = static_cast<CUdeviceptr_v1>(wide);
  return CUDA_SUCCESS;
}

CUDA_EXPORT CUresult cuMemcpyHtoD(CUdeviceptr_v1 to, const void* from, unsigned int bytes) {
  return cuMemcpyHtoD_v2(to, from, bytes);
}
CUDA_EXPORT CUresult cuMemcpyDtoH(void* to, CUdeviceptr_v1 from, unsigned int bytes) {
  return cuMemcpyDtoH_v2(to, from, bytes);
}
CUDA_EXPORT CUresult cuMemcpyDtoD(CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes) {
  return cuMemcpyDtoD_v2(to, from, bytes);
}
CUDA_EXPORT CUresult cuMemcpyHtoDAsync(CUdeviceptr_v1 to, const void* from, unsigned int bytes,
                                       CUstream stream) {
  return cuMemcpyHtoDAsync_v2(to, from, bytes, stream);
}
CUDA_EXPORT CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream) {
  return cuMemcpyDtoHAsync_v2(to, from, bytes, stream);
}
CUDA_EXPORT CUresult cuMemcpyDtoDAsync(CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes,
                                       CUstream stream) {
  return cuMemcpyDtoDAsync_v2(to, from, bytes, stream);
}
CUDA_EXPORT CUresult cuMemcpy2D(const CUDA_MEMCPY2D_v1* copy) {
  return call_widened(cuMemcpy2D_v2, copy);
}
CUDA_EXPORT CUresult cuMemcpy2DUnaligned(const CUDA_MEMCPY2D_v1* copy) {
  return call_widened(cuMemcpy2DUnaligned_v2, copy);
}
CUDA_EXPORT CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D_v1* copy, CUstream stream) {
  return call_widened(cuMemcpy2DAsync_v2, copy, stream);
}
CUDA_EXPORT CUresult cuMemcpy3D(const CUDA_MEMCPY3D_v1* copy) {
  return call_widened(cuMemcpy3D_v2, copy);
}
CUDA_EXPORT CUresult cuMemcpy3DAsync(const CUDA_MEMCPY3D_v1* copy, CUstream stream) {
  return call_widened(cuMemcpy3DAsync_v2, copy, stream);
}

CUDA_EXPORT CUresult cuMemsetD8(CUdeviceptr_v1 to, unsigned char value, unsigned int count) {
  return cuMemsetD8_v2(to, value, count);
}
CUDA_EXPORT CUresult cuMemsetD16(CUdeviceptr_v1 to, unsigned short value, unsigned int count) {
  return cuMemsetD16_v2(to, value, count);
}
CUDA_EXPORT CUresult cuMemsetD32(CUdeviceptr_v1 to, unsigned int value, unsigned int count) {
  return cuMemsetD32_v2(to, value, count);
}
CUDA_EXPORT CUresult cuMemsetD2D8(CUdeviceptr_v1 to, unsigned int pitch, unsigned char value,
                                  unsigned int width, unsigned int height) {
  return cuMemsetD2D8_v2(to, pitch, value, width, height);
}
CUDA_EXPORT CUresult cuMemsetD2D16(CUdeviceptr_v1 to, unsigned int pitch, unsigned short value,
                                   unsigned int width, unsigned int height) {
  return cuMemsetD2D16_v2(to, pitch, value, width, height);
}
CUDA_EXPORT CUresult cuMemsetD2D32(CUdeviceptr_v1 to, unsigned int pitch, unsigned int value,
                                   unsigned int width, unsigned int height) {
  return cuMemsetD2D32_v2(to, pitch, value, width, height);
}
