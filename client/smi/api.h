// The functions of this installation's libnvidia-ml.so.1 that pool-smi uses, loaded like any NVML program
// does. One thread.
#pragma once
#include <string>

#include "protocol/nvml/nvml.h"

namespace gpupool::smi {

// clang-format off
#define SMI_FUNCTIONS(X)                                                                                                              \
  X(nvmlInit_v2) X(nvmlShutdown) X(nvmlErrorString) X(nvmlSystemGetDriverVersion) X(nvmlSystemGetCudaDriverVersion_v2)                \
  X(nvmlSystemGetProcessName) X(nvmlDeviceGetCount_v2) X(nvmlDeviceGetHandleByIndex_v2) X(nvmlDeviceGetName) X(nvmlDeviceGetUUID)     \
  X(nvmlDeviceGetPciInfo_v3) X(nvmlDeviceGetCudaComputeCapability) X(nvmlDeviceGetMemoryInfo_v2) X(nvmlDeviceGetUtilizationRates)     \
  X(nvmlDeviceGetComputeRunningProcesses_v3) X(nvmlDeviceGetComputeMode) X(nvmlDeviceGetPersistenceMode) X(nvmlDeviceGetEccMode)      \
  X(nvmlDeviceGetMaxClockInfo) X(nvmlDeviceGetClockInfo) X(nvmlDeviceGetTemperature) X(nvmlDeviceGetPowerUsage)                       \
  X(nvmlDeviceGetEnforcedPowerLimit) X(nvmlDeviceGetFanSpeed) X(nvmlDeviceGetPerformanceState)
// clang-format on

struct Api {
#define SMI_POINTER(name) decltype(&::name) name = nullptr;
  SMI_FUNCTIONS(SMI_POINTER)
#undef SMI_POINTER
  // Loads the library. Returns an error message; empty: success.
  std::string load();
};

}  // namespace gpupool::smi
