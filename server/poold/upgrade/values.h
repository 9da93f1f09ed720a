// Times and byte strings in upgrade::State. The steady clock goes on when a process executes another program.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

namespace gpupool::upgrade {

inline int64_t to_ns(std::chrono::steady_clock::time_point time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}
inline std::chrono::steady_clock::time_point steady(int64_t ns) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(ns));
}
// Copies a text into an array of bytes. What is missing stays as it is, and what is too much is left out.
template <class Array>
void copy_bytes(const std::string& from, Array& to) {
  std::copy_n(from.begin(), std::min(from.size(), to.size()), to.begin());
}

}  // namespace gpupool::upgrade
