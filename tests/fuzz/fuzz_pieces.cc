// Fuzzes compressed pieces of a copy from an untrusted sender: a piece must be filled completely or rejected,
// and nothing may be written outside it. The first two bytes are the piece's size.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "protocol/compression/lz4.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uint16_t wanted = 0;
  if (size < sizeof wanted) return 0;
  std::memcpy(&wanted, data, sizeof wanted);
  constexpr size_t kBeside = 32;
  std::vector<std::byte> memory(wanted + 2 * kBeside, std::byte{0x5a});
  const auto piece = std::span(memory).subspan(kBeside, wanted);
  const std::span packed(reinterpret_cast<const std::byte*>(data) + sizeof wanted, size - sizeof wanted);
  const bool good = gpupool::compression::unpack(packed, piece);
  for (size_t i = 0; i < kBeside; ++i) {
    if (memory[i] != std::byte{0x5a} || memory[memory.size() - 1 - i] != std::byte{0x5a}) std::abort();
  }
  // Unpacked data must be equal after packing and unpacking again.
  if (good && wanted > 1) {
    std::vector<std::byte> again(wanted), back(wanted);
    const size_t bytes = gpupool::compression::pack(piece, again);
    if (bytes == 0) return 0;
    if (!gpupool::compression::unpack(std::span(again).first(bytes), back)) std::abort();
    if (std::memcmp(back.data(), piece.data(), wanted) != 0) std::abort();
  }
  return 0;
}
