// Copies of one row from or to an array, with their first versions and per-thread variants. Each is a copy of
// a rectangle of height 1.
#include "protocol/driver/exports.h"

namespace {

// One end of a copy; `offset` is in bytes.
struct End {
  CUmemorytype type;
  const void* host;
  CUdeviceptr device;
  CUarray array;
  size_t offset;
};
End in(CUarray array, size_t offset) {
  return {CU_MEMORYTYPE_ARRAY, nullptr, 0, array, offset};
}
End at(CUdeviceptr address) {
  return {CU_MEMORYTYPE_DEVICE, nullptr, address, nullptr, 0};
}
End at(const void* host) {
  return {CU_MEMORYTYPE_HOST, host, 0, nullptr, 0};
}

struct Row : CUDA_MEMCPY2D {
  Row(const End& to, const End& from, size_t bytes) : CUDA_MEMCPY2D{} {
    srcXInBytes = from.offset;
    srcMemoryType = from.type;
    srcHost = from.host;
    srcDevice = from.device;
    srcArray = from.array;
    dstXInBytes = to.offset;
    dstMemoryType = to.type;
    dstHost = const_cast<void*>(to.host);
    dstDevice = to.device;
    dstArray = to.array;
    WidthInBytes = bytes;
    Height = 1;
  }
};

}  // namespace

// Define the first version of a copy, the current one, and its per-thread variant.
#define COPY(name, old_parameters, parameters, to, from) \
  CUDA_EXPORT CUresult name old_parameters {             \
    const Row row(to, from, bytes);                      \
    return cuMemcpy2D_v2(&row);                          \
  }                                                      \
  CUDA_EXPORT CUresult name##_v2 parameters {            \
    const Row row(to, from, bytes);                      \
    return cuMemcpy2D_v2(&row);                          \
  }                                                      \
  CUDA_EXPORT CUresult name##_v2_ptds parameters {       \
    const Row row(to, from, bytes);                      \
    return cuMemcpy2D_v2_ptds(&row);                     \
  }
#define ASYNC_COPY(name, old_parameters, parameters, to, from) \
  CUDA_EXPORT CUresult name old_parameters {                   \
    const Row row(to, from, bytes);                            \
    return cuMemcpy2DAsync_v2(&row, stream);                   \
  }                                                            \
  CUDA_EXPORT CUresult name##_v2 parameters {                  \
    const Row row(to, from, bytes);                            \
    return cuMemcpy2DAsync_v2(&row, stream);                   \
  }                                                            \
  CUDA_EXPORT CUresult name##_v2_ptsz parameters {             \
    const Row row(to, from, bytes);                            \
    return cuMemcpy2DAsync_v2_ptsz(&row, stream);              \
  }

COPY(cuMemcpyHtoA, (CUarray array, unsigned int offset, const void* host, unsigned int bytes),
     (CUarray array, size_t offset, const void* host, size_t bytes), in(array, offset), at(host))
COPY(cuMemcpyAtoH, (void* host, CUarray array, unsigned int offset, unsigned int bytes),
     (void* host, CUarray array, size_t offset, size_t bytes), at(host), in(array, offset))
COPY(cuMemcpyDtoA, (CUarray array, unsigned int offset, CUdeviceptr_v1 device, unsigned int bytes),
     (CUarray array, size_t offset, CUdeviceptr device, size_t bytes), in(array, offset),
     at(CUdeviceptr{device}))
COPY(cuMemcpyAtoD, (CUdeviceptr_v1 device, CUarray array, unsigned int offset, unsigned int bytes),
     (CUdeviceptr device, CUarray array, size_t offset, size_t bytes), at(CUdeviceptr{device}),
     in(array, offset))
COPY(cuMemcpyAtoA,
     (CUarray target, unsigned int target_offset, CUarray source, unsigned int source_offset,
      unsigned int bytes),
     (CUarray target, size_t target_offset, CUarray source, size_t source_offset, size_t bytes),
     in(target, target_offset), in(source, source_offset))
ASYNC_COPY(cuMemcpyHtoAAsync,
           (CUarray array, unsigned int offset, const void* host, unsigned int bytes, CUstream stream),
           (CUarray array, size_t offset, const void* host, size_t bytes, CUstream stream), in(array, offset),
           at(host))
ASYNC_COPY(cuMemcpyAtoHAsync,
           (void* host, CUarray array, unsigned int offset, unsigned int bytes, CUstream stream),
           (void* host, CUarray array, size_t offset, size_t bytes, CUstream stream), at(host),
           in(array, offset))
