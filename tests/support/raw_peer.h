// The connecting side of the handshake between servers (protocol/wire/peers.h), with raw messages. Throws
// std::runtime_error if the other side does not do what a call waits for.
#pragma once
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

#include "protocol/peers/proof.h"
#include "tests/support/raw_client.h"

namespace gpupool::testing {

class RawPeer : public RawClient {
 public:
  explicit RawPeer(const transport::Endpoint& endpoint) : RawClient(endpoint) {}

  void send_hello(const wire::PeerHello& hello) {
    hello_ = hello;
    send_preamble({.protocol_version = wire::kPeerProtocolVersion, .length = sizeof hello});
    send(bytes_of(hello));
  }
  // Sends a hello with a new nonce for this copy of this session.
  void send_hello(const std::string& session_id, uint64_t copy) {
    wire::PeerNonce nonce;
    if (::getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size()))
      throw std::runtime_error("no random numbers");
    std::array<uint8_t, 16> id{};
    std::copy_n(session_id.begin(), std::min(session_id.size(), id.size()), id.begin());
    send_hello(peers::make_hello(nonce, id, copy));
  }
  wire::PeerAnswer receive_answer() {
    struct {
      wire::Preamble preamble;
      wire::PeerAnswer answer;
    } got;
    const auto deadline = transport::Clock::now() + std::chrono::seconds(20);
    const auto bytes = [](auto& part) { return std::span(reinterpret_cast<std::byte*>(&part), sizeof part); };
    if (!transport::receive_exact(connection(), bytes(got.preamble), deadline) ||
        got.preamble.protocol_version != wire::kPeerProtocolVersion ||
        got.preamble.length != sizeof got.answer ||
        !transport::receive_exact(connection(), bytes(got.answer), deadline)) {
      throw std::runtime_error("the server did not send a PeerAnswer");
    }
    return got.answer;
  }
  wire::PeerProof prove(const wire::CopyKey& key, const wire::PeerAnswer& answer,
                        peers::Channel channel = peers::Channel::plain) const {
    return {peers::prove(key, peers::Side::connecting, channel, hello_.nonce, answer.nonce)};
  }
  wire::PeerMac proof_of_accepting(const wire::CopyKey& key, const wire::PeerAnswer& answer,
                                   peers::Channel channel) const {
    return peers::prove(key, peers::Side::accepting, channel, hello_.nonce, answer.nonce);
  }
  // Performs the whole handshake with this key. Returns the worker's reply, which may be a rejection.
  hello::HelloReply open(const std::string& session_id, uint64_t copy, const wire::CopyKey& key,
                         peers::Channel channel = peers::Channel::plain) {
    send_hello(session_id, copy);
    send(bytes_of(prove(key, receive_answer(), channel)));
    return receive_reply();
  }

 private:
  wire::PeerHello hello_{};
};

}  // namespace gpupool::testing
