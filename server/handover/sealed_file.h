// Sealed memory files, in which module images travel between poold and its workers: no process that holds the
// descriptor can change the bytes. An image of N bytes is a file of N + 1 bytes, the last one NUL (PTX is
// text).
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/result.h"

namespace gpupool::server {

// Makes a file of the image's size that cannot be resized, for another process to fill. The caller owns the
// descriptor.
Result<int> make_image_file(uint64_t image_bytes);
// Writes the image into a file from make_image_file() and seals it.
Result<void> fill_image_file(int file, std::span<const std::byte> image);
// True for a tmpfs memory file of this image size that can be neither written nor resized. `descriptor` may
// be anything that a hostile process has sent.
bool is_sealed_file(int descriptor, uint64_t image_bytes);

}  // namespace gpupool::server
