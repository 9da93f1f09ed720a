// What a copy touches in device memory.
#pragma once
#include <cstdint>
#include <optional>

namespace gpupool::worker::commands {

// The bytes from the first to the last of `rows` rows; nullopt: the numbers cannot be.
inline std::optional<uint64_t> extent(uint64_t pitch, uint64_t width, uint64_t rows) {
  if (width == 0 || rows == 0) return 0;
  if (rows > 1 && pitch < width) return std::nullopt;
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(pitch, rows - 1, &bytes) || __builtin_add_overflow(bytes, width, &bytes)) {
    return std::nullopt;
  }
  return bytes;
}

}  // namespace gpupool::worker::commands
