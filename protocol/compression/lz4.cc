#include "protocol/compression/lz4.h"

#include <lz4.h>

namespace gpupool::compression {

size_t pack(std::span<const std::byte> raw, std::span<std::byte> packed) {
  const int size =
      LZ4_compress_default(reinterpret_cast<const char*>(raw.data()), reinterpret_cast<char*>(packed.data()),
                           static_cast<int>(raw.size()), static_cast<int>(packed.size()));
  return size > 0 ? static_cast<size_t>(size) : 0;
}

bool unpack(std::span<const std::byte> packed, std::span<std::byte> raw) {
  const int size =
      LZ4_decompress_safe(reinterpret_cast<const char*>(packed.data()), reinterpret_cast<char*>(raw.data()),
                          static_cast<int>(packed.size()), static_cast<int>(raw.size()));
  return size >= 0 && static_cast<size_t>(size) == raw.size();
}

}  // namespace gpupool::compression
