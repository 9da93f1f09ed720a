// A device's attributes of the memory that graph memory nodes hold.
#include "protocol/cuda/graph_memory.h"

#include "protocol/cuda/exports.h"

using namespace gpupool::cuda;

namespace {

CUresult check(CUdevice device) {
  int count = 0;
  if (const CUresult result = cuDeviceGetCount(&count); result != CUDA_SUCCESS) return result;
  return device >= 0 && device < count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

}  // namespace

CUDA_EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void* value) {
  const CUresult result = check(device);
  return result == CUDA_SUCCESS ? graph_memory::attribute(device, attribute, value) : result;
}
CUDA_EXPORT CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void* value) {
  const CUresult result = check(device);
  return result == CUDA_SUCCESS ? graph_memory::set_attribute(device, attribute, value) : result;
}
CUDA_EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device) { return check(device); }
