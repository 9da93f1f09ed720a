// Asks poold for connections to other servers; the worker opens none itself. poold answers with the
// descriptor of a connection whose other end has proved that it holds the copy's key, or without one, after a
// delay that does not reveal the reason. Any thread.
#pragma once
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>

#include "protocol/wire/peers.h"
#include "server/handover/peer_answer.h"
#include "server/worker/session/control.h"

namespace gpupool::worker {

class PeerRequests {
 public:
  // Longer than poold's own limit (server::PeerConnections::kPatience).
  static constexpr std::chrono::milliseconds kPatience{10'000};

  // `control` may be null: no connections are available.
  explicit PeerRequests(Control* control, std::chrono::milliseconds patience = kPatience);
  ~PeerRequests();
  PeerRequests(const PeerRequests&) = delete;
  PeerRequests& operator=(const PeerRequests&) = delete;

  struct Answer {
    int descriptor = -1;  // owned by the caller; -1: the other server cannot be reached
    server::PeerProtection protection = {};
  };
  // Blocks until poold has answered.
  Answer ask(const wire::PeerTarget& target);
  // Ends all calls of ask(), current and future ones.
  void stop();

 private:
  void answered(const server::ControlMessage& message);

  Control* const control_;
  const std::chrono::milliseconds patience_;
  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::map<uint64_t, std::optional<Answer>> waiting_;  // by request number
  uint64_t last_request_ = 0;
  bool stopped_ = false;
};

}  // namespace gpupool::worker
