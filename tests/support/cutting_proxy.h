// A TCP proxy before a server that cuts every connection after a random number of bytes. Runs threads of its
// own; all functions may be called by any thread. Throws std::runtime_error if it cannot listen.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "protocol/transport/transport.h"

namespace gpupool::testing {

class CuttingProxy {
 public:
  static constexpr uint64_t kSpared = 4000;

  // Cuts after `mean` bytes on average, in both directions together, but not before a connection's first
  // `spared` bytes, which its hellos need. Each cut multiplies the mean by `growth`.
  CuttingProxy(const transport::Endpoint& server, uint64_t mean, uint32_t seed, uint64_t spared = kSpared,
               double growth = 1);
  ~CuttingProxy();
  CuttingProxy(const CuttingProxy&) = delete;
  CuttingProxy& operator=(const CuttingProxy&) = delete;

  transport::Endpoint endpoint() const { return listener_->endpoint(); }
  unsigned cuts() const { return cuts_; }
  void stop_cutting() { cutting_ = false; }
  // Cuts all present connections.
  void cut();
  // Present connections stay open, but nothing passes any more.
  void freeze() { ++frozen_; }
  // Cuts all connections and refuses further ones.
  void go_away();
  // Accepts connections again, on the same port.
  void come_back();
  // Keeps what passes from now on, in both directions.
  void record() { recording_ = true; }
  std::string recorded() const {
    const std::lock_guard lock(recorded_mutex_);
    return recorded_;
  }

 private:
  struct Line;
  void listen(uint16_t port);
  void accept();
  void drop_ended();

  const transport::Endpoint server_;
  const uint64_t mean_, spared_;
  const double growth_;
  std::unique_ptr<transport::Listener> listener_;
  std::atomic<bool> ending_{false}, cutting_{true};
  std::atomic<unsigned> cuts_{0}, frozen_{0};
  std::atomic<bool> recording_{false};
  mutable std::mutex recorded_mutex_;
  std::string recorded_;
  std::mutex mutex_;  // guards random_ and lines_
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Line>> lines_;
  std::thread acceptor_;
};

}  // namespace gpupool::testing
