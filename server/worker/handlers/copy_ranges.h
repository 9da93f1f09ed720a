// The range of device memory that a copy accesses.
#pragma once
#include <cstdint>
#include <optional>

namespace gpupool::worker::commands {

// Returns the number of bytes from the first to the last byte of `rows` rows; nullopt if the sizes are
// inconsistent or overflow.
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
