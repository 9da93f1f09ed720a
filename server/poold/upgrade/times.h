// Times of the steady clock in upgrade::State, which goes on when a process executes another program.
#pragma once
#include <chrono>
#include <cstdint>

namespace gpupool::upgrade {

inline int64_t to_ns(std::chrono::steady_clock::time_point time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}
inline std::chrono::steady_clock::time_point steady(int64_t ns) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(ns));
}

}  // namespace gpupool::upgrade
