#include "scheduler/web/assets.h"

#include <algorithm>
#include <vector>

// assets.S
#define ASSET(symbol, file, type) \
  extern const char gpupool_page_##symbol##_begin[], gpupool_page_##symbol##_end[];
#include "scheduler/web/assets.def"
#undef ASSET

namespace gpupool::pool {
namespace {

constexpr std::string_view kIndex = "index.html";

constexpr std::string_view path_of(std::string_view file, std::string_view path) {
  return file == kIndex ? "/" : path;
}

std::string_view body_of(const char* begin, const char* end) {
  return {begin, static_cast<size_t>(end - begin)};
}

}  // namespace

std::span<const Asset> assets() {
  static const std::vector<Asset> all{
#define ASSET(symbol, file, type)           \
  Asset{path_of(file, "/page/" file), type, \
        body_of(gpupool_page_##symbol##_begin, gpupool_page_##symbol##_end)},
#include "scheduler/web/assets.def"
#undef ASSET
  };
  return all;
}

const Asset* find_asset(std::string_view path) {
  const auto all = assets();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Asset& one) { return one.path == path; });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace gpupool::pool
