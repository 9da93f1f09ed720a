// A TCP proxy between a client and poold that counts what the client sends: how many commands, and for how many of them it
// waits (round trips). Pings do not count. One thread per direction and connection; ends with the object.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "protocol/transport/transport.h"

namespace gpupool::testing {

class CountingProxy {
 public:
  explicit CountingProxy(const transport::Endpoint& server);
  ~CountingProxy();
  std::string url() const { return listener_->endpoint().text(); }
  uint64_t commands() const { return commands_; }
  uint64_t round_trips() const { return round_trips_; }
  void reset() { commands_ = round_trips_ = 0; }

 private:
  struct Pair;
  void accept();
  void count_commands(Pair& pair);
  void pass_back(Pair& pair);

  const transport::Endpoint server_;
  std::unique_ptr<transport::Listener> listener_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> commands_{0};
  std::atomic<uint64_t> round_trips_{0};
  std::vector<std::unique_ptr<Pair>> pairs_;  // acceptor's thread, then the destructor
  std::thread acceptor_;
};

}  // namespace gpupool::testing
