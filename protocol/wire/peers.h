// Handshake between two servers, before the data of a copy goes from one to the other (docs/wire-format.md,
// "Copies between servers"). Done by poold on both sides.
//
// The connecting poold sends a Preamble with version kPeerProtocolVersion and a PeerHello. The accepting
// poold answers with a Preamble of that version and a PeerAnswer, or with a refusal as to a client. The
// connecting poold then sends a PeerProof. The frames consist of random numbers, hashes and HMACs: no byte
// that a client chose leaves the host before the other side has proved that it holds the copy's key
// (protocol/peers/proof.h). The frames are not encrypted, on a tls port either. After them, a tls port uses
// TLS between the two workers, with a key that both sides derive (peers::channel_key).
#pragma once
#include <array>
#include <cstdint>

#include "protocol/wire/copies.h"
#include "protocol/wire/frame.h"

namespace gpupool::wire {

// Not a version of the client protocol: servers older than this version answer it with WRONG_VERSION.
constexpr uint16_t kPeerProtocolVersion = 0x8002;

using PeerNonce = std::array<uint8_t, 32>;
using PeerMac = std::array<uint8_t, 32>;
using CopyKey = std::array<uint8_t, 32>;

struct PeerHello {
  PeerNonce nonce;
  std::array<uint8_t, 16> session;  // session and copy are masked with the nonce (peers::make_hello)
  uint64_t copy;
  uint32_t rdma;  // as Hello.rdma
  uint32_t reserved;
};
struct PeerAnswer {
  PeerNonce nonce;
  PeerMac proof;
};
struct PeerProof {
  PeerMac proof;
};

// The receiving end of a copy between servers.
struct PeerTarget {
  std::array<uint8_t, 16> address;     // IPv6, or IPv4 as ::ffff:a.b.c.d
  std::array<uint8_t, 16> session_id;  // the client's session there
  CopyKey key;                         // of the copy (peers::copy_key)
  uint64_t copy;                       // sequence number of bulk_to_device there
  uint16_t port;
  uint16_t rdma;  // 1: use rdma if both ends can
  uint32_t tls;   // 1: the port is a tls port; then `rdma` is 0
};
// True if the values of the target's flags are allowed.
constexpr bool is_well_formed(const PeerTarget& target) {
  return target.rdma + target.tls <= 1 && target.tls <= 1;
}
// copy_to_peer: sends the pieces of a copy from the device to another server, where the client has announced
// it with bulk_to_device. Reply: when all pieces have been sent; after an error some may have been.
// CUDA_ERROR_NOT_SUPPORTED: the other server cannot be reached from here, for whatever reason.
struct CopyToPeer {
  BulkCopy rows;  // flags 0
  PeerTarget target;
};

static_assert(kIsBody<PeerHello, 64>);
static_assert(kIsBody<PeerAnswer, 64>);
static_assert(kIsBody<PeerProof, 32>);
static_assert(kIsBody<PeerTarget, 80>);
static_assert(kIsBody<CopyToPeer, 128>);

}  // namespace gpupool::wire
