// A driver with a few functions; every other symbol is the stub of exports.S.
#include "protocol/driver/exports.h"

static uint32_t last_unsupported = UINT32_MAX;

CUDA_EXPORT CUresult CUDAAPI cuInit(unsigned int) {
  return static_cast<CUresult>(4242);
}

CUDA_EXPORT CUresult CUDAAPI cuDriverGetVersion(int* version) {
  *version = static_cast<int>(last_unsupported);
  return CUDA_SUCCESS;
}

CUresult gpupool_cuda_unsupported(uint32_t symbol) {
  last_unsupported = symbol;
  return CUDA_ERROR_NOT_SUPPORTED;
}

#undef cuGetProcAddress
#if CUDA_VERSION < 12000
using CUdriverProcAddressQueryResult = int;
#endif
CUDA_EXPORT CUresult CUDAAPI cuGetProcAddress_v2(const char* name, void** address, int version,
                                                 cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
  return gpupool::cuda::get_proc_address_v2(name, address, version, flags, reinterpret_cast<int*>(status),
                                            13000);
}
CUDA_EXPORT CUresult CUDAAPI cuGetProcAddress(const char* name, void** address, int version,
                                              cuuint64_t flags) {
  return gpupool::cuda::get_proc_address_v1(name, address, version, flags, 13000);
}
