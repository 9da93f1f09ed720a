#include "protocol/driver/driver_version.h"

#include <charconv>
#include <string>

#include "protocol/driver/version_map.h"

namespace gpupool::cuda {
namespace {

std::string text_of(int version) {
  return std::to_string(version / 1000) + '.' + std::to_string(version % 1000 / 10);
}

}  // namespace

std::optional<int> parse_driver_version(std::string_view text) {
  const char* const end = text.data() + text.size();
  unsigned major = 0, minor = 0;
  const auto [dot, wrong] = std::from_chars(text.data(), end, major);
  if (wrong != std::errc() || dot == end || *dot != '.') return std::nullopt;
  const auto [rest, wrong_too] = std::from_chars(dot + 1, end, minor);
  if (wrong_too != std::errc() || rest != end || major > 99 || minor > 9) return std::nullopt;
  const int version = static_cast<int>(major * 1000 + minor * 10);
  if (version < kOldestDriverVersion || version > newest_symbol_version()) return std::nullopt;
  return version;
}

const char* driver_version_wanted() {
  static const std::string text =
      "a CUDA version from " + text_of(kOldestDriverVersion) + " to " + text_of(newest_symbol_version());
  return text.c_str();
}

}  // namespace gpupool::cuda
