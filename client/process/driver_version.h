// GPUPOOL_DRIVER_VERSION: overrides the CUDA driver version that the program sees. Default: the version that
// the client and all servers support. Thread-safe.
#pragma once
#include <optional>

namespace gpupool::client {

// Returns the version as cuDriverGetVersion does, e.g. 13040. The variable is read once; an invalid value is
// logged and ignored.
std::optional<int> driver_version_setting();

}  // namespace gpupool::client
