#include "server/softgpu/runtime/identity.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>

#include "protocol/driver/driver_version.h"
#include "server/softgpu/runtime/device.h"

namespace gpupool::softgpu {
namespace {

// FNV-1a, because the result must be the same in every process and on every run.
uint64_t stable_hash(std::string_view text, uint64_t seed) {
  uint64_t hash = 0xcbf29ce484222325ull ^ seed;
  for (const char character : text) hash = (hash ^ static_cast<unsigned char>(character)) * 0x100000001b3ull;
  return hash ^ hash >> 29;
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

std::string identity(const Config& config, int ordinal) {
  return host_name() + "/" + config.instance + "/" + std::to_string(ordinal);
}

}  // namespace

CUuuid device_uuid(const Config& config, int ordinal) {
  const uint64_t halves[2] = {stable_hash(identity(config, ordinal), 1),
                              stable_hash(identity(config, ordinal), 2)};
  CUuuid uuid;
  std::memcpy(uuid.bytes, halves, sizeof uuid.bytes);
  return uuid;
}

PciAddress device_pci(const Config& config, int ordinal) {
  return {config.instance.empty() ? 0 : static_cast<int>(stable_hash(config.instance, 3) & 0xffff),
          ordinal + 1, 0};
}

int multiprocessors(const Config& config) {
  return static_cast<int>(config.threads != 0 ? config.threads
                                              : std::max(std::thread::hardware_concurrency(), 1u));
}

int driver_version() {
  static const int version = [] {
    const char* const text = getenv("SOFTGPU_DRIVER_VERSION");
    return cuda::parse_driver_version(text == nullptr ? "" : text).value_or(cuda::kNewestSupportedVersion);
  }();
  return version;
}

}  // namespace gpupool::softgpu
