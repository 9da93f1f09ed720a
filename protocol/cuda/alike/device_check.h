// CUDA_ERROR_INVALID_DEVICE for a number that is no device's, as the library's own cuDeviceGetAttribute answers it.
#pragma once
#include "protocol/cuda/exports.h"

inline CUresult check_device(CUdevice device) {
  int value = 0;
  return cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, device);
}
