#include "protocol/driver/version_map.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace gpupool::cuda {
namespace {

struct Row {
  const char* name;
  int version;
};

constexpr Row kRows[] = {
#define CUDA_SYMBOL(name, version) {#name, version},
#include "protocol/driver/symbols.def"
#undef CUDA_SYMBOL
};
constexpr uint32_t kRowCount = std::size(kRows);

constexpr int kNewest = [] {
  int newest = 0;
  for (const Row& row : kRows) newest = std::max(newest, row.version);
  return newest;
}();

constexpr uint16_t kNone = 0xffff;
static_assert(kRowCount < kNone);

// The parts of a full name: base, N of _vN (1 without it), and whether it is a per-thread variant.
struct Parts {
  std::string_view base;
  int revision = 1;
  bool per_thread = false;
  uint16_t row = kNone;
};

constexpr bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

constexpr Parts take_apart(std::string_view name) {
  Parts parts{name};
  for (std::string_view suffix : {"_ptds", "_ptsz"}) {
    if (parts.base.ends_with(suffix)) {
      parts.base.remove_suffix(suffix.size());
      parts.per_thread = true;
    }
  }
  const size_t size = parts.base.size();
  if (size > 3 && is_digit(parts.base[size - 1]) && parts.base.substr(size - 3, 2) == "_v") {
    parts.revision = parts.base[size - 1] - '0';
    parts.base.remove_suffix(3);
  }
  return parts;
}

constexpr bool before(const Parts& a, const Parts& b) {
  if (const int order = a.base.compare(b.base); order != 0) return order < 0;
  if (a.revision != b.revision) return a.revision < b.revision;
  return a.per_thread < b.per_thread;
}

constexpr std::array<Parts, kRowCount> kByBase = [] {
  std::array<Parts, kRowCount> all{};
  for (uint32_t row = 0; row < kRowCount; ++row) {
    all[row] = take_apart(kRows[row].name);
    all[row].row = static_cast<uint16_t>(row);
  }
  std::sort(all.begin(), all.end(), before);
  return all;
}();

// Every per-thread variant directly follows its symbol, and later revisions of a base are not older.
static_assert([] {
  for (uint32_t i = 0; i < kRowCount; ++i) {
    const Parts& now = kByBase[i];
    if (i == 0 || kByBase[i - 1].base != now.base) {
      if (now.per_thread) return false;
      continue;
    }
    const Parts& last = kByBase[i - 1];
    if (now.per_thread && (last.per_thread || last.revision != now.revision)) return false;
    if (!now.per_thread && kRows[last.row].version > kRows[now.row].version) return false;
    if (last.revision == now.revision && last.per_thread == now.per_thread) return false;
  }
  return true;
}());

constexpr std::array<uint16_t, kRowCount> kByName = [] {
  std::array<uint16_t, kRowCount> all{};
  for (uint32_t row = 0; row < kRowCount; ++row) all[row] = static_cast<uint16_t>(row);
  std::sort(all.begin(), all.end(), [](uint16_t a, uint16_t b) {
    return std::string_view(kRows[a].name) < std::string_view(kRows[b].name);
  });
  return all;
}();

}  // namespace

int newest_symbol_version() {
  return kNewest;
}

uint32_t symbol_count() {
  return kRowCount;
}

const char* symbol_name(uint32_t symbol) {
  return symbol < kRowCount ? kRows[symbol].name : "";
}

uint32_t symbol_by_name(std::string_view full_name) {
  const auto at =
      std::lower_bound(kByName.begin(), kByName.end(), full_name,
                       [](uint16_t row, std::string_view name) { return kRows[row].name < name; });
  return at != kByName.end() && kRows[*at].name == full_name ? *at : kRowCount;
}

std::string_view base_name(std::string_view symbol) {
  return take_apart(symbol).base;
}

SymbolMatch find_symbol(std::string_view base_name, int cuda_version, uint64_t flags) {
  auto at = std::lower_bound(kByBase.begin(), kByBase.end(), base_name,
                             [](const Parts& parts, std::string_view name) { return parts.base < name; });
  SymbolMatch match;
  for (; at != kByBase.end() && at->base == base_name; ++at) {
    if (kRows[at->row].version > cuda_version) {
      if (match.status != SymbolStatus::found) match.status = SymbolStatus::version_not_sufficient;
      continue;
    }
    if (at->per_thread && flags != kPerThreadDefaultStream) continue;
    match = {SymbolStatus::found, at->row};
  }
  return match;
}

}  // namespace gpupool::cuda
