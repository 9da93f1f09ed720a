// How the two ends speak about a module image without sending it: by name (the SHA-256 of its bundle) and with a proof
// that the speaker has the bytes. No state, any thread, cannot fail.
//
// The proof is the SHA-256 of a nonce, which the server makes for each session, and the whole bundle behind it: it
// cannot be computed from the name, and one session's proof is worth nothing in another.
#pragma once
#include <array>
#include <cstddef>
#include <span>

#include "protocol/wire/images.h"

namespace gpupool::image {

using Nonce = std::array<std::byte, 32>;

wire::ImageDigest digest(std::span<const std::byte> bundle);
wire::ImageDigest proof(const Nonce& nonce, std::span<const std::byte> bundle);
// All of it in one pass over the bytes.
wire::ImageName name(const Nonce& nonce, std::span<const std::byte> bundle);

}  // namespace gpupool::image
