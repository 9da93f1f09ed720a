// A TCP proxy between one client and poold that counts commands, and can cut the connection after a number of
// bytes. It runs threads of its own; the counters may be read by any thread. Throws std::runtime_error if it
// cannot listen.
#pragma once
#include <atomic>
#include <cstdint>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "protocol/transport/transport.h"

namespace gpupool::testing {

class Proxy {
 public:
  static constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

  // Forwards the first client's connection to `server`; closes both after `cut_after` bytes from the server,
  // or `cut_after_upwards` bytes from the client. `port` 0: any free port.
  explicit Proxy(const transport::Endpoint& server, uint64_t cut_after = kNever,
                 uint64_t cut_after_upwards = kNever, uint16_t port = 0);
  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  std::string url() const { return listener_->endpoint().text(); }
  uint64_t commands() const { return commands_; }        // from the client
  uint64_t round_trips() const { return round_trips_; }  // commands that want a reply
  uint64_t from_server() const { return from_server_; }  // bytes
  uint64_t from_client() const { return from_client_; }
  uint64_t uploads() const { return uploads_; }  // commands with a part of a module image
  // Keeps what passes from now on.
  void record() { recording_ = true; }
  struct Passed {
    bool from_server = false;
    std::string bytes;
  };
  // Waits until both connections have ended, and returns what has passed, in this order.
  const std::vector<Passed>& recorded() {
    if (thread_.joinable()) thread_.join();
    return recorded_;
  }

 private:
  void run(const transport::Endpoint& server, uint64_t cut_after, uint64_t cut_after_upwards);
  void keep(bool from_server, const std::byte* bytes, size_t size);
  void look(const std::byte* bytes, size_t size);

  std::unique_ptr<transport::Listener> listener_;
  std::atomic<bool> ending_{false};
  std::atomic<uint64_t> commands_{0}, round_trips_{0}, from_server_{0}, from_client_{0}, uploads_{0};
  std::string unread_;  // incomplete header
  uint64_t skip_ = 0;   // remaining bytes of the current body
  bool hello_seen_ = false;
  std::atomic<bool> recording_{false};
  std::mutex mutex_;  // guards recorded_
  std::vector<Passed> recorded_;
  std::thread thread_;
};

}  // namespace gpupool::testing
