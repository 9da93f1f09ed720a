// GPUPOOL_DRIVER_VERSION: the CUDA version that the program is told instead of the one that client and servers have in common.
#pragma once
#include <optional>

namespace gpupool::client {

// As cuDriverGetVersion gives it: 13040. Read once; a wrong value is complained about, and counts as not set. Any thread.
std::optional<int> driver_version_setting();

}  // namespace gpupool::client
