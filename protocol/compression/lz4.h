// One piece of a bulk copy, compressed: an LZ4 block without any header, since both ends know the piece's size from the
// copy. No state, any thread.
#pragma once
#include <cstddef>
#include <span>

namespace gpupool::compression {

// Bytes written to `packed`; 0: they would not fit, so the piece is not worth compressing.
size_t pack(std::span<const std::byte> raw, std::span<std::byte> packed);
// False unless `packed`, which may be anything, fills `raw` exactly. Nothing outside of `raw` is written.
bool unpack(std::span<const std::byte> packed, std::span<std::byte> raw);

}  // namespace gpupool::compression
