// Which device of an instance is which: the same in every process, from the configuration alone. Pure functions, any thread.
#pragma once
#include "server/softgpu/runtime/config.h"

namespace gpupool::softgpu {

inline constexpr char kDeviceName[] = "softgpu (CPU)";

struct PciAddress {
  int domain, bus, slot;
};
PciAddress device_pci(const Config& config, int ordinal);

int multiprocessors(const Config& config);

// SOFTGPU_DRIVER_VERSION as cuDriverGetVersion gives it, or the newest version whose promises are kept. A wrong setting makes cuInit fail
// (read_config).
int driver_version();

}  // namespace gpupool::softgpu
