#include "client/process/driver_version.h"

#include <cstdlib>

#include "client/process/log.h"
#include "protocol/driver/driver_version.h"

namespace gpupool::client {

std::optional<int> driver_version_setting() {
  static const std::optional<int> setting = []() -> std::optional<int> {
    const char* const text = std::getenv("GPUPOOL_DRIVER_VERSION");
    if (!text || !*text) return std::nullopt;
    const auto version = cuda::parse_driver_version(text);
    if (!version)
      log_error("GPUPOOL_DRIVER_VERSION=%s: ignored, must be %s", text, cuda::driver_version_wanted());
    return version;
  }();
  return setting;
}

}  // namespace gpupool::client
