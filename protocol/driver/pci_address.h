// The PCI address of a GPU as the driver API and NVML write it. Pure functions, any thread.
#pragma once

#include <optional>
#include <string_view>

namespace gpupool::cuda {

struct PciAddress {
  unsigned domain = 0, bus = 0, device = 0;
  bool operator==(const PciAddress&) const = default;
};

// Parses hexadecimal "domain:bus:device.function"; the domain (then 0) and the function may be missing. Text
// behind the device is ignored. nullopt if a number is missing or exceeds 32 bits.
std::optional<PciAddress> parse_pci_address(std::string_view text);

}  // namespace gpupool::cuda
