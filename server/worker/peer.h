// Another server's session of the same client, to which copies are sent directly.
//
// One connection, opened when the first copy wants it, and one thread that sends. Whatever goes wrong ends the copies with an
// error and the peer with them: the session makes a new one, and the client knows another way. open() may block, and belongs to
// wait threads; the rest may be called by any.
#pragma once
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "protocol/transport/transport.h"
#include "server/worker/bandwidth.h"

namespace gpupool::worker {

class OutgoingCopy;

class Peer {
 public:
  // What it sends is charged to `bandwidth`. Over rdma, for an rdma:// address, where both ends can.
  Peer(transport::Endpoint server, std::string session_id, std::string token, std::chrono::milliseconds dead_peer_timeout,
       const transport::RdmaOptions& rdma, std::shared_ptr<Bandwidth> bandwidth);
  ~Peer() { stop(); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // False: it cannot be reached, or does not know the session.
  bool open();
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
  void run_sender();

  const transport::Endpoint server_;
  const std::string session_id_;
  const std::string token_;
  const std::shared_ptr<Bandwidth> bandwidth_;  // may be null
  transport::Options options_;
  std::mutex opening_;
  std::mutex mutex_;  // what follows
  std::condition_variable wake_;
  State state_ = State::closed;
  std::unique_ptr<transport::Connection> connection_;
  std::deque<Piece> queue_;
  std::thread sender_;
};

}  // namespace gpupool::worker
