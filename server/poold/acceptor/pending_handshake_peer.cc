// Handshake with another server (protocol/wire/peers.h): it names a copy of a session here; this poold proves
// that it holds the copy's key, and then the other server does.
#include <sys/random.h>

#include <asio/write.hpp>

#include "protocol/peers/proof.h"
#include "server/poold/acceptor/pending_handshake.h"

namespace gpupool::server {

void PendingHandshake::read_peer_hello() {
  if (preamble_.length != sizeof peer_hello_ || transport_ == "shm" || tls_) {
    return refuse({control::HelloReply::MALFORMED,
                   "a server's hello has the wrong length, or this port does not accept servers"});
  }
  read(asio::buffer(&peer_hello_, sizeof peer_hello_), [this](const asio::error_code& status, size_t) {
    if (status) return reject("server disconnected during its hello");
    if (!acceptor_.accepts_peer_hello(peer_)) return reject("too many hellos from other servers");
    prove_to_peer();
  });
}

// Counted and rate-limited like the refusals of clients.
void PendingHandshake::deny_peer(const std::string& why) {
  timer_.cancel();
  // The refusal is not encrypted: the other server has not proved that it could decrypt it.
  Client client{
      .descriptor = stream_.release(), .transport = "tcp", .admission_peer = peer_, .address = address_};
  acceptor_.deny(*this, std::move(client), {control::HelloReply::DENIED, why});
}

void PendingHandshake::prove_to_peer() {
  peer_copy_ = acceptor_.find_peer_copy_(peer_hello_);
  if (!peer_copy_) return deny_peer("no session is waiting for this copy");
  wire::PeerAnswer answer{};
  if (::getrandom(answer.nonce.data(), answer.nonce.size(), 0) != static_cast<ssize_t>(answer.nonce.size())) {
    return reject("cannot get random numbers");
  }
  const auto channel = transport_ == "tls" ? peers::Channel::encrypted : peers::Channel::plain;
  const auto prove = [&](peers::Side side) {
    return peers::prove(peer_copy_->key, side, channel, peer_hello_.nonce, answer.nonce);
  };
  answer.proof = prove(peers::Side::accepting);
  const wire::Preamble preamble{.protocol_version = wire::kPeerProtocolVersion, .length = sizeof answer};
  bytes_.assign(reinterpret_cast<const char*>(&preamble), sizeof preamble);
  bytes_.append(reinterpret_cast<const char*>(&answer), sizeof answer);
  peer_expected_ = prove(peers::Side::connecting);
  peer_copy_->channel_key = peers::channel_key(peer_copy_->key, peer_hello_.nonce, answer.nonce);
  asio::async_write(stream_, asio::buffer(bytes_),
                    [self = shared_from_this()](const asio::error_code& status, size_t) {
                      if (status == asio::error::operation_aborted) return;
                      if (status) return self->reject("server disconnected before receiving the proof");
                      self->read_peer_proof();
                    });
}

void PendingHandshake::read_peer_proof() {
  read(asio::buffer(&peer_proof_, sizeof peer_proof_), [this](const asio::error_code& status, size_t) {
    if (status) return reject("server disconnected during its proof");
    if (!peers::same(peer_proof_.proof, peer_expected_))
      return deny_peer("authentication failed: wrong key for this copy");
    timer_.cancel();
    Client client{.descriptor = stream_.release(),
                  .transport = transport_ == "tls"     ? "tls"
                               : peer_hello_.rdma != 0 ? "rdma"
                                                       : "tcp",
                  .peer = *peer_copy_,
                  .admission_peer = peer_,
                  .address = address_};
    acceptor_.admit(*this, std::move(client), {});
  });
}

}  // namespace gpupool::server
