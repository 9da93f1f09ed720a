// Names a module image so that it need not be sent: an ImageName has the SHA-256 of the image's bundle and a
// proof that the sender has the bundle's bytes. Used by the client library and by workers. No state, any
// thread, cannot fail.
//
// The proof is the SHA-256 of a nonce, which the server makes for each session, followed by the whole bundle.
// It cannot be computed from the digest, and a proof from one session is useless in another.
#pragma once
#include <array>
#include <cstddef>
#include <span>

#include "protocol/wire/images.h"

namespace gpupool::image {

using Nonce = std::array<std::byte, 32>;

wire::ImageDigest digest(std::span<const std::byte> bundle);
wire::ImageDigest proof(const Nonce& nonce, std::span<const std::byte> bundle);
// Computes size, digest and proof in one pass over the bundle.
wire::ImageName name(const Nonce& nonce, std::span<const std::byte> bundle);

}  // namespace gpupool::image
