// Returns CUDA_ERROR_INVALID_DEVICE if no device has this number. Asks the library's own
// cuDeviceGetAttribute.
#pragma once
#include "protocol/driver/exports.h"

inline CUresult check_device(CUdevice device) {
  int value = 0;
  return cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, device);
}
