#include "client/busy_addresses.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

namespace gpupool::client {

std::vector<wire::AddressRange> busy_addresses() {
  constexpr uint64_t kRoom = uint64_t{64} << 30, kLowest = uint64_t{4} << 30, kEnd = uint64_t{1} << 47;
  std::vector<wire::AddressRange> ranges;
  std::FILE* const maps = std::fopen("/proc/self/maps", "re");
  if (!maps) return ranges;
  char line[512];
  bool at_start = true;  // longer lines come in several parts
  while (std::fgets(line, sizeof line, maps)) {
    uint64_t begin = 0, end = 0;
    const bool parsed = at_start && std::sscanf(line, "%" SCNx64 "-%" SCNx64, &begin, &end) == 2;
    at_start = std::find(std::begin(line), std::end(line), '\n') != std::end(line);
    if (!parsed || end <= kLowest || begin >= kEnd) continue;
    begin = std::max(kLowest, begin / kRoom * kRoom);
    end = std::min(kEnd, (end + kRoom - 1) / kRoom * kRoom);
    if (!ranges.empty() && begin <= ranges.back().base + ranges.back().size) ranges.back().size = end - ranges.back().base;
    else ranges.push_back({begin, end - begin});
  }
  std::fclose(maps);
  return ranges;
}

}  // namespace gpupool::client
