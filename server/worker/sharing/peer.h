// A connection to the client's session on another server (the peer), to which copies are sent directly.
//
// poold opens the connection for the first copy (peer_requests.h), on behalf of that copy's key; one thread
// sends. Later copies send their own key before their first piece. Any failure ends the copies with an error
// and makes the peer unusable; the session then creates a new one, and the client has a fallback. open() may
// block and is called on wait threads; destroyed on the executor's thread (peers.h); all other functions: any
// thread.
#pragma once
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "protocol/transport/transport.h"
#include "protocol/wire/peers.h"
#include "server/worker/copies/bandwidth.h"

namespace gpupool::worker {

class OutgoingCopy;
class PeerRequests;

// Opens a connection to a session on another server. Blocks.
Result<std::unique_ptr<transport::Connection>> connect_to_peer(PeerRequests& requests,
                                                               wire::PeerTarget target,
                                                               transport::Options options);

class Peer {
 public:
  // Charges sent bytes to `bandwidth` (may be null). `over_rdma`: upgrade to RDMA if both ends can.
  Peer(bool over_rdma, PeerRequests& requests, std::chrono::milliseconds dead_peer_timeout,
       const transport::RdmaOptions& rdma, std::shared_ptr<Bandwidth> bandwidth);
  ~Peer() { stop(); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // Returns false if the other server cannot be reached or does not hold the copy's key.
  bool open(const wire::PeerTarget& target);
  bool is_open();
  bool broken();
  void send(std::shared_ptr<OutgoingCopy> copy, uint64_t piece);
  void stop();

 private:
  enum class State { closed, open, broken };
  struct Piece {
    std::shared_ptr<OutgoingCopy> copy;
    uint64_t number;
  };
  Result<void> send_key(OutgoingCopy& copy);
  void run_sender();

  PeerRequests& requests_;
  const std::shared_ptr<Bandwidth> bandwidth_;  // may be null
  transport::Options options_;
  std::mutex opening_;
  std::mutex mutex_;  // guards the rest
  std::condition_variable wake_;
  State state_ = State::closed;
  std::unique_ptr<transport::Connection> connection_;
  uint64_t opened_for_ = 0;  // the copy whose key opened the connection
  std::deque<Piece> queue_;
  std::thread sender_;
};

}  // namespace gpupool::worker
