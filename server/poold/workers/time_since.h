// Times that have passed, in whole milliseconds.
#pragma once
#include <chrono>

namespace gpupool::server {

inline std::chrono::milliseconds time_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
}

}  // namespace gpupool::server
