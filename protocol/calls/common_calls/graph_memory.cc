// cuDevice...GraphMem...: a device's memory that graphs' memory nodes hold.
#include "protocol/calls/graph_memory.h"

#include "protocol/calls/common_calls/device_check.h"

using namespace gpupool::cuda;

CUDA_EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute,
                                                  void* value) {
  const CUresult result = check_device(device);
  return result == CUDA_SUCCESS ? graph_memory::attribute(device, attribute, value) : result;
}
CUDA_EXPORT CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute,
                                                  void* value) {
  const CUresult result = check_device(device);
  return result == CUDA_SUCCESS ? graph_memory::set_attribute(device, attribute, value) : result;
}
CUDA_EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device) {
  return check_device(device);
}
