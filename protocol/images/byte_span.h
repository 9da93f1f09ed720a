// The bytes of an untrusted image, and reads that never pass their end. No state, any thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace gpupool::cuda {

using ByteSpan = std::span<const std::byte>;

// Reads a T at `offset` bytes, which may be unaligned; false, and `value` unchanged, if it does not lie
// inside.
template <typename T>
bool read_at(ByteSpan bytes, uint64_t offset, T& value) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return false;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return true;
}

}  // namespace gpupool::cuda
