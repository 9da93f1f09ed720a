// Fills. To the caller they are asynchronous for device memory, so each is its ...Async row on a default stream.
#include "client/call.h"
#include "protocol/cuda/exports.h"

using namespace gpupool::client;

#define FILL(function, row, type)                                                              \
  CUDA_EXPORT CUresult function(CUdeviceptr address, type value, size_t count) {               \
    return rows::row::forward(address, value, count, nullptr);                                 \
  }                                                                                            \
  CUDA_EXPORT CUresult function##_ptds(CUdeviceptr address, type value, size_t count) {        \
    return rows::row::forward_per_thread(address, value, count, nullptr);                      \
  }
FILL(cuMemsetD8_v2, cuMemsetD8Async, unsigned char)
FILL(cuMemsetD16_v2, cuMemsetD16Async, unsigned short)
FILL(cuMemsetD32_v2, cuMemsetD32Async, unsigned int)
#undef FILL

#define FILL_2D(function, row, type)                                                                               \
  CUDA_EXPORT CUresult function(CUdeviceptr address, size_t pitch, type value, size_t width, size_t height) {      \
    return rows::row::forward(address, pitch, value, width, height, nullptr);                                      \
  }                                                                                                                \
  CUDA_EXPORT CUresult function##_ptds(CUdeviceptr address, size_t pitch, type value, size_t width, size_t height) { \
    return rows::row::forward_per_thread(address, pitch, value, width, height, nullptr);                           \
  }
FILL_2D(cuMemsetD2D8_v2, cuMemsetD2D8Async, unsigned char)
FILL_2D(cuMemsetD2D16_v2, cuMemsetD2D16Async, unsigned short)
FILL_2D(cuMemsetD2D32_v2, cuMemsetD2D32Async, unsigned int)
#undef FILL_2D
