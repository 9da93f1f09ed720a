// Opens connections to other servers for workers, which may open none themselves, and has each server prove that it holds the copy's key before
// anything that a client chose is sent (protocol/wire/peers.h). Networks says where to; the rest of the world is not even asked.
//
// A client must not learn from here what listens where. So every attempt that fails, whatever the reason, is answered kPatience after it was asked
// for, and only a proof is answered sooner. An address outside the networks is refused at once: that depends on nothing but the configuration.
// poold's one thread; never blocks. Answers come from the event loop or, for such addresses, from open() itself.
#pragma once
#include <asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "protocol/wire/peers.h"
#include "server/admission/token_bucket.h"
#include "server/networks.h"

namespace gpupool::server {

class PeerConnections {
 public:
  static constexpr std::chrono::milliseconds kPatience{3'000};
  // The descriptor is the receiver's; -1: there is no connection.
  using Answer = std::function<void(int descriptor)>;

  PeerConnections(asio::io_context& context, Networks networks);
  ~PeerConnections();
  PeerConnections(const PeerConnections&) = delete;
  PeerConnections& operator=(const PeerConnections&) = delete;

  // False: the session waits for more connections than any client needs, and is not answered.
  bool open(uint64_t session, const wire::PeerTarget& target, Answer answer);
  // The session has ended: it is not answered any more.
  void drop(uint64_t session);
  void close();  // drops all

 private:
  class Attempt;
  struct Session {
    TokenBucket pace{{.burst = 32, .per_second = 2}};  // attempts that it may begin
    bool told = false;  // that an address is outside the networks
    std::map<uint64_t, std::shared_ptr<Attempt>> attempts;
  };

  void finish(uint64_t session, uint64_t attempt, int descriptor);

  asio::io_context& context_;
  const Networks networks_;
  std::map<uint64_t, Session> sessions_;
  uint64_t next_attempt_ = 1;
};

}  // namespace gpupool::server
