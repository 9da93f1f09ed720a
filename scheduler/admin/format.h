// Formatting of numbers for pool-admin. Pure functions.
#pragma once
#include <array>
#include <cstdint>
#include <cstdio>
#include <string>

namespace gpupool::admin {

// Formats like snprintf; truncates to 63 bytes.
template <class... Values>
std::string format(const char* pattern, Values... values) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), pattern, values...);
  return text.data();
}

// Returns "25 %", or "-" if `whole` is 0.
inline std::string percent(uint64_t part, uint64_t whole) {
  return whole == 0 ? "-" : format("%.0f %%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

}  // namespace gpupool::admin
