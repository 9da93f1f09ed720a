#include "protocol/driver/bus_ids.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "protocol/driver/cuda_header.h"

namespace gpupool::cuda {

void make_bus_ids_unique(const std::vector<hello::Device*>& devices) {
  for (auto at = devices.begin(); at != devices.end(); ++at) {
    hello::Device& device = **at;
    const auto is_taken = [&](const std::string& id) {
      return std::any_of(devices.begin(), at,
                         [&](const hello::Device* other) { return other->pci_bus_id == id; });
    };
    if (device.pci_bus_id.find(':') == std::string::npos) continue;
    const unsigned long own = std::strtoul(device.pci_bus_id.c_str(), nullptr, 16);
    for (unsigned long step = 1; is_taken(device.pci_bus_id) && step <= devices.size(); ++step) {
      const unsigned long domain = (own + step) & 0xffff;
      char digits[16];
      std::snprintf(digits, sizeof digits, "%04lx", domain);
      device.pci_bus_id.replace(0, device.pci_bus_id.find(':'), digits);
      for (hello::Attribute& attribute : device.attributes) {
        if (attribute.id == CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID) attribute.value = static_cast<int32_t>(domain);
      }
    }
  }
}

}  // namespace gpupool::cuda
