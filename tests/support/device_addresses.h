// Where tests without a device place device addresses.
#pragma once
#include <cstdint>

namespace gpupool::testing {

// Far from where Linux places heaps, libraries and stacks, and from what a sanitizer keeps for itself:
// ThreadSanitizer leaves programs only the first 512 GiB of these.
#if defined(GPUPOOL_TSAN)
constexpr uint64_t kDeviceAddresses = 0x10'0000'0000;
#else
constexpr uint64_t kDeviceAddresses = 0x2000'0000'0000;
#endif

}  // namespace gpupool::testing
