// Compresses one piece of a bulk copy into an LZ4 block without a header: both ends know the piece's
// uncompressed size from the copy. Used by pieces.cc. No state, any thread.
#pragma once
#include <cstddef>
#include <span>

namespace gpupool::compression {

// Returns the bytes written to `packed`, or 0 if the block does not fit: then the piece is not worth
// compressing.
size_t pack(std::span<const std::byte> raw, std::span<std::byte> packed);
// Decompresses `packed`, which is untrusted. Returns false unless it fills `raw` exactly. Never writes
// outside `raw`.
bool unpack(std::span<const std::byte> packed, std::span<std::byte> raw);

}  // namespace gpupool::compression
