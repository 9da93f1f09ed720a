// The PCI address of a GPU as the driver API and NVML write it. Pure functions, any thread.
#pragma once

#include <optional>
#include <string_view>

namespace gpupool::cuda {

struct PciAddress {
  unsigned domain = 0, bus = 0, device = 0;
  bool operator==(const PciAddress&) const = default;
};

// Reads hexadecimal "domain:bus:device.function"; the domain (then 0) and the function may be left out. Nothing where a number is missing or
// has no place in 32 bits. What follows the device is not read.
std::optional<PciAddress> parse_pci_address(std::string_view text);

}  // namespace gpupool::cuda
