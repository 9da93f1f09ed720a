// Continues a session whose connection broke on the one with which the client returns
// (docs/adr/0036-sessions-resume.md), and gives it up if none comes in time.
//
// A thread of its own waits for breaks; poold passes the client's new connections on through Control. Each of
// a session's connections has a Resumption, to be destroyed before the connection.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "protocol/transport/resume/resumable_connection.h"
#include "server/worker/session/control.h"

namespace gpupool::worker {

class Resumption;

// Passes the connections that clients resume with to the Resumption of the broken one.
class Resumptions {
 public:
  explicit Resumptions(Control& control);
  ~Resumptions();
  Resumptions(const Resumptions&) = delete;
  Resumptions& operator=(const Resumptions&) = delete;
  void add(uint64_t link, Resumption& resumption);
  // Afterwards nothing is passed to it.
  void remove(uint64_t link);
  // Tell poold, for monitoring.
  void broken(uint64_t link, bool closed) {
    (void)control_.send<server::ControlKind::connection_broken>({.link = link, .closed = closed ? 1u : 0u});
  }
  void client_leaves() { (void)control_.send<server::ControlKind::client_leaves>(); }
  void resumed(uint64_t link, uint64_t resent) {
    (void)control_.send<server::ControlKind::connection_resumed>({link, resent});
  }

 private:
  Control& control_;
  std::mutex mutex_;
  std::map<uint64_t, Resumption*> by_link_;
};

class Resumption {
 public:
  // Answers the hello on a connection that poold has passed on, with the number of bytes received so far, and
  // upgrades it.
  using Welcome = std::function<Result<std::unique_ptr<transport::Connection>>(const server::ControlMessage&,
                                                                               uint64_t received)>;
  struct Terms {
    Resumptions* offers = nullptr;
    Welcome welcome;
    std::chrono::milliseconds timeout{0};  // how long to wait for the client
    uint64_t session_number = 0;           // for logs
    std::function<void()> on_break;        // if set, called at each break, on a thread of the Resumption
  };
  // `link`: Hello.bulk_link of the connection.
  Resumption(transport::ResumableConnection& connection, uint64_t link, Terms terms);
  ~Resumption();
  Resumption(const Resumption&) = delete;
  Resumption& operator=(const Resumption&) = delete;

  // The client's program is ending: do not wait for it.
  void client_leaves() {
    leaving_.store(true, std::memory_order_relaxed);
    terms_.offers->client_leaves();
  }
  void take(server::ControlMessage message);

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  void tell_broken(const Error& why);
  // `start`: when the connection broke. Returns false if the client did not come.
  bool wait_for_client(const Error& why, Clock::time_point start);
  Result<void> resume(const server::ControlMessage& message);

  transport::ResumableConnection& connection_;
  const uint64_t link_;
  const Terms terms_;
  std::atomic<bool> leaving_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<server::ControlMessage> offered_;  // the client's latest connection
  std::thread thread_;
};

}  // namespace gpupool::worker
