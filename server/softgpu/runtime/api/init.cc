// cuInit, cuDriverGetVersion, cuGetProcAddress, and functions for poold's workers.
#include "server/softgpu/memory/address_space.h"
#include "server/softgpu/runtime/api/call.h"
#include "server/softgpu/runtime/identity.h"

using namespace gpupool;
using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

CUDA_EXPORT CUresult cuInit(unsigned int flags) {
  try {
    return runtime().initialise(flags);
  } catch (...) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

// Not part of CUDA, for poold's workers: 1 if new memory is zeroed, 0 if it is not.
CUDA_EXPORT int softgpu_zeroes_memory() {
  return memory_is_dirty() ? 0 : 1;
}

// Not part of CUDA, for poold's workers: bytes that this process has of a device's memory. Needs no context.
CUDA_EXPORT int softgpu_process_memory(int index, unsigned long long* bytes) {
  Device* const device = runtime().device(index);
  if (device == nullptr || bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *bytes = device->shared().process_bytes();
  return CUDA_SUCCESS;
}

CUDA_EXPORT CUresult cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = driver_version();
  return CUDA_SUCCESS;
}

CUDA_EXPORT CUresult cuGetProcAddress(const char* name, void** address, int version, cuuint64_t flags) {
  return cuda::get_proc_address_v1(name, address, version, flags, driver_version());
}

#if CUDA_VERSION >= 12000
CUDA_EXPORT CUresult cuGetProcAddress_v2(const char* name, void** address, int version, cuuint64_t flags,
                                         CUdriverProcAddressQueryResult* status) {
  int answer = 0;
  const CUresult result = cuda::get_proc_address_v2(name, address, version, flags, &answer, driver_version());
  if (status != nullptr && result == CUDA_SUCCESS)
    *status = static_cast<CUdriverProcAddressQueryResult>(answer);
  return result;
}
#endif
