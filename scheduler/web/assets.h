// The files of the scheduler's web page, embedded in the program. Served by service/web_page.cc. Any thread.
#pragma once
#include <span>
#include <string_view>

namespace gpupool::pool {

struct Asset {
  std::string_view path;  // of its URL
  std::string_view type;
  std::string_view body;
};

std::span<const Asset> assets();
// Returns null if no file has the path.
const Asset* find_asset(std::string_view path);

}  // namespace gpupool::pool
