// Where tests without a device place device addresses.
#pragma once
#include <cstdint>

#include "common/sanitizers.h"

namespace gpupool::testing {

// Far from where Linux places heaps, libraries and stacks, and from what a sanitizer keeps for itself.
constexpr uint64_t kDeviceAddresses = kThreadSanitized ? kThreadSanitizerEnd / 8 : 32ull << 40;

}  // namespace gpupool::testing
