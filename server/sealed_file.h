// A memory file whose bytes nobody can change any more, whoever holds its descriptor: how a module image travels between
// poold and its workers. An image of N bytes is a file of N + 1, the last one NUL (PTX is text).
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "protocol/wire/result.h"

namespace gpupool::server {

// A file of the image's size that cannot be resized, for somebody else to fill. The descriptor is the caller's to close.
Result<int> make_image_file(uint64_t image_bytes);
// Writes the image into a file made for its size and seals it.
Result<void> fill_image_file(int file, std::span<const std::byte> image);
// True for an ordinary memory file of this image size that can be neither written nor resized. The descriptor may be
// anything that a hostile process has sent.
bool is_sealed_file(int descriptor, uint64_t image_bytes);

}  // namespace gpupool::server
