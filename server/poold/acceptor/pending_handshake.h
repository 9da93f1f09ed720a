// A connection that has not sent its complete Hello yet, or that is being sent a refusal. Used by Acceptor
// alone.
//
// Runs on poold's thread, except take_tls_step() and read_records(). Acceptor's list and the handlers of
// pending operations own it until drop(). Errors are reported to Acceptor and close the connection.
#pragma once
#include <array>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "protocol/wire/frame.h"
#include "protocol/wire/peers.h"
#include "server/poold/acceptor/acceptor.h"

namespace gpupool::server {

class PendingHandshake : public std::enable_shared_from_this<PendingHandshake> {
 public:
  // `tls` is null for other transports.
  PendingHandshake(Acceptor& acceptor, int descriptor, std::string transport, std::string address,
                   std::shared_ptr<transport::tls::Stream> tls);

  void read_hello(std::chrono::milliseconds timeout);
  void refuse(const Refusal& refusal);
  void drop();

  const std::string& address() const { return address_; }
  const std::string& peer() const { return peer_; }

  std::optional<PerPeer<std::shared_ptr<PendingHandshake>>::Position> position;  // in Acceptor's list

 private:
  using Then = std::function<void(const asio::error_code& status, size_t count)>;

  // Fills the buffer, then calls `then` unless drop() was called. Reads through TLS if the connection uses
  // it, and handles TLS errors itself.
  void read(asio::mutable_buffer buffer, Then then);
  void read_tls(std::span<std::byte> buffer, size_t received, Then then);
  void write_tls(std::span<const std::byte> rest);
  void fail_tls(const std::string& why);
  void post_tls_step(std::function<void()> work, std::function<void()> done);
  void read_records(std::span<std::byte> buffer);
  void open_tls();
  void take_tls_step();
  void tls_step_done();
  void close();
  void await_tls(std::function<void()> then);
  bool is_plain();
  void start_timer(std::chrono::milliseconds timeout, const char* reason);
  void read_preamble();
  void read_body();
  void written(const asio::error_code& status);
  void handle_hello();
  // Handshake with another server, in pending_handshake_peer.cc.
  void read_peer_hello();
  void prove_to_peer();
  void read_peer_proof();
  void deny_peer(const std::string& why);
  void discard_input();
  void reject(const std::string& why);  // closes without an answer

  Acceptor& acceptor_;
  asio::posix::stream_descriptor stream_;
  asio::steady_timer timer_;
  const std::string transport_;
  const std::string address_;
  const std::string peer_;  // its load and refusals are charged to this peer
  std::shared_ptr<transport::tls::Stream> tls_;
  bool tls_step_pending_ = false;  // a TLS step is queued or running: the socket must stay open
  bool dropped_ = false;
  Result<bool> opened_ = false;  // result of the last TLS step; true: the handshake is complete
  // Results of read_records(): bytes received, an error, and whether it has read all that the socket has.
  size_t received_ = 0;
  std::optional<Error> read_error_;
  bool starved_ = false;
  wire::Preamble preamble_;
  std::string bytes_;  // the Hello, later the refusal
  wire::PeerHello peer_hello_{};
  wire::PeerProof peer_proof_{};
  wire::PeerMac peer_expected_{};
  std::optional<PeerCopy> peer_copy_;
  std::array<std::byte, 4096> sink_{};  // discarded data of a refused client
  size_t discarded_ = 0;
};

}  // namespace gpupool::server
