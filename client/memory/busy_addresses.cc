#include "client/memory/busy_addresses.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace gpupool::client {
namespace {

// Parses "begin-end ...", in hexadecimal.
bool read_range(const char* line, uint64_t* begin, uint64_t* end) {
  char* rest = nullptr;
  *begin = std::strtoull(line, &rest, 16);
  if (rest == line || *rest != '-') return false;
  const char* const second = rest + 1;
  *end = std::strtoull(second, &rest, 16);
  return rest != second;
}

}  // namespace

std::vector<wire::AddressRange> busy_addresses() {
  constexpr uint64_t kRoom = uint64_t{64} << 30, kLowest = uint64_t{4} << 30, kEnd = uint64_t{1} << 47;
  std::vector<wire::AddressRange> ranges;
  std::FILE* const maps = std::fopen("/proc/self/maps", "re");
  if (!maps) return ranges;
  char line[512];
  bool at_start = true;  // longer lines are read in several parts
  while (std::fgets(line, sizeof line, maps)) {
    uint64_t begin = 0, end = 0;
    const bool parsed = at_start && read_range(line, &begin, &end);
    at_start = std::find(std::begin(line), std::end(line), '\n') != std::end(line);
    if (!parsed || end <= kLowest || begin >= kEnd) continue;
    begin = std::max(kLowest, begin / kRoom * kRoom);
    end = std::min(kEnd, (end + kRoom - 1) / kRoom * kRoom);
    if (!ranges.empty() && begin <= ranges.back().base + ranges.back().size)
      ranges.back().size = end - ranges.back().base;
    else
      ranges.push_back({begin, end - begin});
  }
  static_cast<void>(std::fclose(maps));
  return ranges;
}

}  // namespace gpupool::client
