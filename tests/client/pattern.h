// Data that does not compress, for tests of copies. Any thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace gpupool::client::test {

inline std::string pattern(size_t bytes) {
  std::string data(bytes, '\0');
  uint32_t state = 1;
  for (char& byte : data) byte = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return data;
}

}  // namespace gpupool::client::test
