// Another server's session of the same client, to which copies are sent directly.
//
// One connection, which poold opens when the first copy wants it (peer_requests.h), and one thread that sends. It begins with that copy's key; later
// copies send their own before their pieces. Whatever goes wrong ends the copies with an
// error and the peer with them: the session makes a new one, and the client knows another way. open() may block, and belongs to
// wait threads; the rest may be called by any.
#pragma once
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "protocol/transport/transport.h"
#include "protocol/wire/peers.h"
#include "server/worker/bandwidth.h"

namespace gpupool::worker {

class OutgoingCopy;
class PeerRequests;

class Peer {
 public:
  // What it sends is charged to `bandwidth`. With `over_rdma` that is tried, where both ends can.
  Peer(bool over_rdma, PeerRequests& requests, std::chrono::milliseconds dead_peer_timeout, const transport::RdmaOptions& rdma,
       std::shared_ptr<Bandwidth> bandwidth);
  ~Peer() { stop(); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // False: it cannot be reached, or does not hold the copy's key.
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
  Result<std::unique_ptr<transport::Connection>> connect(wire::PeerTarget target);
  Result<void> send_key(OutgoingCopy& copy);
  void run_sender();

  PeerRequests& requests_;
  const std::shared_ptr<Bandwidth> bandwidth_;  // may be null
  transport::Options options_;
  std::mutex opening_;
  std::mutex mutex_;  // what follows
  std::condition_variable wake_;
  State state_ = State::closed;
  std::unique_ptr<transport::Connection> connection_;
  uint64_t opened_for_ = 0;  // the copy with whose key
  std::deque<Piece> queue_;
  std::thread sender_;
};

}  // namespace gpupool::worker
