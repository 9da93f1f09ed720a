// The identity of an instance's devices, computed from the configuration without starting the runtime:
// softgpu's NVML uses it, too. Every process of the instance gets the same. Any thread.
#pragma once
#include "server/softgpu/runtime/config.h"

namespace gpupool::softgpu {

inline constexpr char kDeviceName[] = "softgpu (CPU)";

struct PciAddress {
  int domain, bus, slot;
};
PciAddress device_pci(const Config& config, int ordinal);

int multiprocessors(const Config& config);

// The number that cuDriverGetVersion reports: SOFTGPU_DRIVER_VERSION, or cuda::kPromisedVersion. An invalid
// setting makes cuInit fail (read_config).
int driver_version();

}  // namespace gpupool::softgpu
