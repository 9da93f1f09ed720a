// One connection that has not introduced itself yet, or that is being told why it is refused.
//
// Lives among FrontDoor's, and in the handlers of its pending operations; drop() ends both. poold's one
// thread.
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
#include "server/front_door.h"

namespace gpupool::server {

class HalfOpen : public std::enable_shared_from_this<HalfOpen> {
 public:
  // `tls`: null where the transport is another.
  HalfOpen(FrontDoor& door, int descriptor, std::string transport, std::string address, std::shared_ptr<transport::tls::Stream> tls);

  void read_hello(std::chrono::milliseconds timeout);
  void refuse(const Refusal& refusal);
  void drop();

  const std::string& address() const { return address_; }
  const std::string& peer() const { return peer_; }

  std::optional<PerPeer<std::shared_ptr<HalfOpen>>::Place> place;  // among the door's

 private:
  using Then = std::function<void(const asio::error_code& status, size_t count)>;

  // The whole buffer, then `then` (not after drop()). Through TLS where there is some; its failures end here.
  void read(asio::mutable_buffer buffer, Then then);
  void read_tls(std::span<std::byte> buffer, size_t received, Then then);
  void write_tls(std::span<const std::byte> rest);
  void fail_tls(const std::string& why);
  void open_tls();
  void take_tls_step();
  void tls_step_done();
  void hang_up();
  void await_tls(std::function<void()> then);
  bool is_plain();
  void start_timer(std::chrono::milliseconds timeout, const char* reason);
  void read_preamble();
  void read_body();
  void written(const asio::error_code& status);
  void introduce();
  // In half_open_peer.cc: another server.
  void read_peer_hello();
  void prove_to_peer();
  void read_peer_proof();
  void deny_peer(const std::string& why);
  void linger();
  void reject(const std::string& why);  // without an answer

  FrontDoor& door_;
  asio::posix::stream_descriptor stream_;
  asio::steady_timer timer_;
  const std::string transport_;
  const std::string address_;
  const std::string peer_;  // that its load and its refusals are charged to
  std::shared_ptr<transport::tls::Stream> tls_;
  bool opening_ = false;           // a step of the handshake is waiting or under way: the socket must stay
  bool dropped_ = false;
  Result<bool> opened_ = false;    // what the last step came to
  wire::Preamble preamble_;
  std::string bytes_;              // Hello, then the refusal
  wire::PeerHello peer_hello_{};
  wire::PeerProof peer_proof_{};
  wire::PeerMac peer_expected_{};
  std::optional<PeerCopy> peer_copy_;
  std::array<std::byte, 4096> sink_{};  // what a refused client still sends
  size_t discarded_ = 0;
};

}  // namespace gpupool::server
