#include "server/poold/workers/host_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace gpupool::server {
namespace {

constexpr uint64_t kHostReserve = uint64_t{512} << 20;  // kept free for other processes of the host

uint64_t host_memory_available() {
  std::ifstream file("/proc/meminfo");
  uint64_t kibibytes = 0;
  for (std::string word; file >> word;) {
    if (word == "MemAvailable:" && file >> kibibytes) return kibibytes << 10;
  }
  return UINT64_MAX;
}

}  // namespace

uint64_t host_memory_left() {
  const uint64_t available = host_memory_available();
  return available - std::min(available, kHostReserve);
}

}  // namespace gpupool::server
