// Asks poold for connections to other servers: the worker itself opens none. poold answers with the descriptor of a connection whose other end has
// proved that it holds the copy's key, or, after a time that tells nothing, without one. Any thread.
#pragma once
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>

#include "protocol/wire/peers.h"
#include "server/worker/control.h"

namespace gpupool::worker {

class PeerRequests {
 public:
  // Longer than poold takes to answer (server::PeerConnections::kPatience).
  static constexpr std::chrono::milliseconds kPatience{10'000};

  // `control` may be null: then there are no connections.
  explicit PeerRequests(Control* control, std::chrono::milliseconds patience = kPatience);
  ~PeerRequests();
  PeerRequests(const PeerRequests&) = delete;
  PeerRequests& operator=(const PeerRequests&) = delete;

  // Blocks until poold has answered. The descriptor, which is the caller's; -1: the other server cannot be reached.
  int ask(const wire::PeerTarget& target);
  // Ends all calls of ask(), also those to come.
  void stop();

 private:
  void answered(const server::ControlMessage& message);

  Control* const control_;
  const std::chrono::milliseconds patience_;
  std::mutex mutex_;  // what follows
  std::condition_variable changed_;
  std::map<uint64_t, std::optional<int>> waiting_;  // by request: the answer
  uint64_t last_request_ = 0;
  bool stopped_ = false;
};

}  // namespace gpupool::worker
