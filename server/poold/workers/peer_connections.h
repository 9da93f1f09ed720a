// Opens connections to other servers for workers, which may open none themselves. Verifies that the other
// server holds the copy's key before anything chosen by a client is sent (protocol/wire/peers.h). Connects
// only to addresses in `networks`.
//
// Must not tell a client which addresses and ports accept connections. So every failed attempt is answered
// kPatience after it was requested, whatever the reason; only a valid proof is answered sooner. An address
// outside the networks is refused at once, since that depends on the configuration alone, and give_up() fails
// all attempts at once. WorkerPool uses it on poold's thread; it never blocks. Answers come from the event
// loop, from give_up(), or from open() itself for refused addresses.
#pragma once
#include <algorithm>
#include <asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "common/admission/token_bucket.h"
#include "protocol/wire/peers.h"
#include "server/handover/peer_answer.h"
#include "server/sockets/networks.h"

namespace gpupool::server {

class PeerConnections {
 public:
  static constexpr std::chrono::milliseconds kPatience{3'000};
  struct Opened {
    int descriptor = -1;  // owned by the receiver; -1: no connection
    PeerProtection protection = {};
  };
  using Answer = std::function<void(const Opened&)>;

  PeerConnections(asio::io_context& context, Networks networks);
  ~PeerConnections();
  PeerConnections(const PeerConnections&) = delete;
  PeerConnections& operator=(const PeerConnections&) = delete;

  // Returns false, without an answer, if the session has more open attempts than any client needs.
  bool open(uint64_t session, const wire::PeerTarget& target, Answer answer);
  // For a connection within this poold, which needs no open(): true if the session may have one now, which
  // then counts as an attempt.
  bool may_begin(uint64_t session) { return sessions_[session].pace.take(); }
  // Drops the attempts of a session that has ended, without answers.
  void drop(uint64_t session);
  void close();    // drops all attempts
  void give_up();  // fails all attempts
  bool has_attempts() const {
    return std::ranges::any_of(sessions_, [](const auto& one) { return !one.second.attempts.empty(); });
  }

 private:
  class Attempt;
  struct Session {
    TokenBucket pace{{.burst = 32, .per_second = 2}};  // limits new attempts
    bool logged = false;                               // logged that an address is outside the networks
    std::map<uint64_t, std::shared_ptr<Attempt>> attempts;
  };

  void finish(uint64_t session, uint64_t attempt, const Opened& opened);

  asio::io_context& context_;
  const Networks networks_;
  std::map<uint64_t, Session> sessions_;
  uint64_t next_attempt_ = 1;
};

}  // namespace gpupool::server
