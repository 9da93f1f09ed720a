// Properties of devices that follow from the configuration alone, so processes with the same configuration
// agree on them. The runtime and softgpu's NVML, which starts no runtime, use them. Any thread.
#pragma once
#include "server/softgpu/runtime/config.h"

namespace gpupool::softgpu {

inline constexpr char kDeviceName[] = "softgpu (CPU)";

struct PciAddress {
  int domain, bus, slot;
};
PciAddress device_pci(const Config& config, int ordinal);

int multiprocessors(const Config& config);

// The number that cuDriverGetVersion reports: SOFTGPU_DRIVER_VERSION, or cuda::kNewestSupportedVersion. An
// invalid setting makes cuInit fail (read_config).
int driver_version();

}  // namespace gpupool::softgpu
