// Copies of one row from or to an array, with their twins on the per-thread stream and those of old.
#include "server/softgpu/runtime/api/call.h"

using namespace gpupool::softgpu::api;

namespace {

// What an end of a copy is: its place is given in bytes.
struct Place {
  CUmemorytype type;
  const void* host = nullptr;
  CUdeviceptr device = 0;
  CUarray array = nullptr;
  size_t offset = 0;
};
Place in(CUarray array, size_t offset) { return {CU_MEMORYTYPE_ARRAY, nullptr, 0, array, offset}; }
Place at(CUdeviceptr address) { return {CU_MEMORYTYPE_DEVICE, nullptr, address, nullptr, 0}; }
Place at(const void* host) { return {CU_MEMORYTYPE_HOST, host, 0, nullptr, 0}; }

CUDA_MEMCPY2D row(const Place& to, const Place& from, size_t bytes) {
  CUDA_MEMCPY2D copy{};
  copy.srcXInBytes = from.offset;
  copy.srcMemoryType = from.type;
  copy.srcHost = from.host;
  copy.srcDevice = from.device;
  copy.srcArray = from.array;
  copy.dstXInBytes = to.offset;
  copy.dstMemoryType = to.type;
  copy.dstHost = const_cast<void*>(to.host);
  copy.dstDevice = to.device;
  copy.dstArray = to.array;
  copy.WidthInBytes = bytes;
  copy.Height = 1;
  return copy;
}
CUresult now(const Place& to, const Place& from, size_t bytes) {
  const CUDA_MEMCPY2D copy = row(to, from, bytes);
  return cuMemcpy2D_v2(&copy);
}
CUresult later(const Place& to, const Place& from, size_t bytes, CUstream stream) {
  const CUDA_MEMCPY2D copy = row(to, from, bytes);
  return cuMemcpy2DAsync_v2(&copy, stream);
}

}  // namespace

#define COPY(name, old_parameters, parameters, body)   \
  CUDA_EXPORT CUresult name old_parameters { return body; } \
  CUDA_EXPORT CUresult name##_v2 parameters { return body; } \
  CUDA_EXPORT CUresult name##_v2_ptds parameters {     \
    const PerThreadDefaultStream scope;                \
    return body;                                       \
  }
COPY(cuMemcpyHtoA, (CUarray to, unsigned int offset, const void* from, unsigned int bytes),
     (CUarray to, size_t offset, const void* from, size_t bytes), now(in(to, offset), at(from), bytes))
COPY(cuMemcpyAtoH, (void* to, CUarray from, unsigned int offset, unsigned int bytes),
     (void* to, CUarray from, size_t offset, size_t bytes), now(at(to), in(from, offset), bytes))
COPY(cuMemcpyDtoA, (CUarray to, unsigned int offset, CUdeviceptr_v1 from, unsigned int bytes),
     (CUarray to, size_t offset, CUdeviceptr from, size_t bytes), now(in(to, offset), at(CUdeviceptr{from}), bytes))
COPY(cuMemcpyAtoD, (CUdeviceptr_v1 to, CUarray from, unsigned int offset, unsigned int bytes),
     (CUdeviceptr to, CUarray from, size_t offset, size_t bytes), now(at(CUdeviceptr{to}), in(from, offset), bytes))
COPY(cuMemcpyAtoA, (CUarray to, unsigned int to_offset, CUarray from, unsigned int from_offset, unsigned int bytes),
     (CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes),
     now(in(to, to_offset), in(from, from_offset), bytes))

#define ASYNC_COPY(name, old_parameters, parameters, body) \
  CUDA_EXPORT CUresult name old_parameters { return body; } \
  CUDA_EXPORT CUresult name##_v2 parameters { return body; } \
  CUDA_EXPORT CUresult name##_v2_ptsz parameters {         \
    const PerThreadDefaultStream scope;                    \
    return body;                                           \
  }
ASYNC_COPY(cuMemcpyHtoAAsync, (CUarray to, unsigned int offset, const void* from, unsigned int bytes, CUstream stream),
           (CUarray to, size_t offset, const void* from, size_t bytes, CUstream stream), later(in(to, offset), at(from), bytes, stream))
ASYNC_COPY(cuMemcpyAtoHAsync, (void* to, CUarray from, unsigned int offset, unsigned int bytes, CUstream stream),
           (void* to, CUarray from, size_t offset, size_t bytes, CUstream stream), later(at(to), in(from, offset), bytes, stream))
