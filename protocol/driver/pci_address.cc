#include "protocol/driver/pci_address.h"

#include <charconv>
#include <cstddef>
#include <system_error>

namespace gpupool::cuda {

std::optional<PciAddress> parse_pci_address(std::string_view text) {
  unsigned numbers[3] = {};
  size_t count = 0;
  const char *at = text.data(), *const end = at + text.size();
  for (;;) {
    const auto [rest, error] = std::from_chars(at, end, numbers[count], 16);
    if (error != std::errc()) return std::nullopt;
    if (++count == 3 || rest == end || *rest != ':') break;
    at = rest + 1;
  }
  if (count == 3) return PciAddress{numbers[0], numbers[1], numbers[2]};
  if (count == 2) return PciAddress{0, numbers[0], numbers[1]};
  return std::nullopt;
}

}  // namespace gpupool::cuda
