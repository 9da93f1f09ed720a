// Cooperative launches on several devices, whose grids wait for one another.
// CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH is 0, so only a launch on one device succeeds. Also
// unified functions, which no device here has.
#include "protocol/driver/exports.h"

CUDA_EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* launches, unsigned int count,
                                                          unsigned int flags) {
  int devices = 0;
  if (const CUresult result = cuDeviceGetCount(&devices); result != CUDA_SUCCESS) return result;
  constexpr unsigned kKnown = CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC |
                              CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC;
  if (!launches || count == 0 || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (count > static_cast<unsigned>(devices)) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    // The default streams are not allowed.
    const CUstream stream = launches[i].hStream;
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
      return CUDA_ERROR_INVALID_HANDLE;
  }
  if (count != 1) return CUDA_ERROR_NOT_SUPPORTED;
  const CUDA_LAUNCH_PARAMS& only = launches[0];
  return cuLaunchCooperativeKernel(only.function, only.gridDimX, only.gridDimY, only.gridDimZ, only.blockDimX,
                                   only.blockDimY, only.blockDimZ, only.sharedMemBytes, only.hStream,
                                   only.kernelParams);
}

#if CUDA_VERSION >= 12000
CUDA_EXPORT CUresult cuLibraryGetUnifiedFunction(void** function, CUlibrary library, const char* symbol) {
  unsigned count = 0;
  int devices = 0;
  if (const CUresult result = cuDeviceGetCount(&devices); result != CUDA_SUCCESS) return result;
  if (!function || !symbol) return CUDA_ERROR_INVALID_VALUE;
#if CUDA_VERSION >= 12040
  if (const CUresult result = cuLibraryGetKernelCount(&count, library); result != CUDA_SUCCESS) return result;
#endif
  return CUDA_ERROR_NOT_FOUND;
}
#endif
