// Derives the keys of copies between servers, and proves possession of a key (protocol/wire/peers.h), also
// for a client that resumes its session.
// HMAC-SHA256. Used by the client library (copy_key) and by poold. No state, any thread, cannot fail.
//
// A copy's key is derived from the bulk token of the receiving session, which only that session's client and
// server know. The client gives the sending server this key alone, so that server can neither derive another
// copy's key nor join the session as its client would.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "protocol/wire/peers.h"

namespace gpupool::peers {

// Key of the copy to the device with the sequence number `copy`.
wire::CopyKey copy_key(std::string_view bulk_token, uint64_t copy);

enum class Side { connecting, accepting };
// The channel that follows the proofs, and that they are for: a connection that was redirected from a tcp
// port to a tls port, or the other way, fails.
enum class Channel { plain, encrypted };
// Proof that this side holds the key, for the connection of these two nonces.
wire::PeerMac prove(const wire::CopyKey& key, Side side, Channel channel, const wire::PeerNonce& connecting,
                    const wire::PeerNonce& accepting);

// Key of the TLS stream of an encrypted channel. Only the two sides that hold the copy's key can compute it.
wire::PeerMac channel_key(const wire::CopyKey& key, const wire::PeerNonce& connecting,
                          const wire::PeerNonce& accepting);

// Makes a hello that names a session and a copy, and looks random to anyone who does not know the session's
// id. The caller sets `rdma`.
wire::PeerHello make_hello(const wire::PeerNonce& nonce, std::span<const uint8_t, 16> session_id,
                           uint64_t copy);
// True if the hello names this session; then *copy is the copy's sequence number.
bool names(const wire::PeerHello& hello, std::span<const uint8_t, 16> session_id, uint64_t* copy);

// Proof that a client holds the key of the session that it resumes (HelloReply.resume_key), for one attempt
// at one of its connections (Hello.bulk_link).
wire::PeerMac prove_resume(std::string_view resume_key, uint64_t link, uint64_t attempt, uint64_t received);
// True if `proof` is that. The time does not depend on where they differ.
bool proves_resume(std::string_view proof, std::string_view resume_key, uint64_t link, uint64_t attempt,
                   uint64_t received);

// Constant-time comparison.
bool same(std::span<const uint8_t, 32> a, std::span<const uint8_t, 32> b);

}  // namespace gpupool::peers
