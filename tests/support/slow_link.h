// Simulates a network link with a given round-trip time and bandwidth between clients and poold on one
// machine: a TCP proxy that delays every byte by half the round-trip time, independently of the number of
// connections and the amount of data in flight.
//
// One thread per direction of each connection receives data, queues it with its due time, and sends it at
// that time; it spins for the last microseconds. Sleeping threads use real-time priority if permitted,
// because a network card would not wait for a core. Throws std::runtime_error if it cannot listen.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "protocol/transport/transport.h"

namespace gpupool::testing {

class SlowLink {
 public:
  struct Quality {
    std::chrono::nanoseconds round_trip{0};
    double bytes_per_second = 0;   // per direction, for all connections together; 0: unlimited
    bool first_unlimited = false;  // exempts the first connection, which carries a program's commands
  };
  SlowLink(const transport::Endpoint& server, const Quality& quality);
  ~SlowLink();
  SlowLink(const SlowLink&) = delete;
  SlowLink& operator=(const SlowLink&) = delete;

  std::string url() const { return "tcp://127.0.0.1:" + std::to_string(port_); }
  // Closes both ends of connection `number`, in the order of acceptance, from 0.
  void cut(size_t number);
  uint64_t bytes_up() const { return up_.bytes; }
  uint64_t bytes_down() const { return down_.bytes; }

 private:
  // One direction of the link; all connections share its bandwidth.
  struct Way {
    std::atomic<int64_t> free_at{0};  // when the last accepted byte will have been sent; steady clock, ns
    std::atomic<uint64_t> bytes{0};
    double nanoseconds_per_byte = 0;
  };
  struct Pair;
  void accept_all(const transport::Endpoint& server);
  void carry(int from, int to, Way& way);
  int64_t due(Way& way, int64_t arrived, size_t bytes) const;

  const int64_t delay_;  // nanoseconds, one way
  const bool first_unlimited_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<bool> ending_{false};
  Way up_, down_, first_up_, first_down_;
  std::mutex mutex_;  // guards pairs_
  std::vector<std::unique_ptr<Pair>> pairs_;
  std::thread acceptor_;
};

}  // namespace gpupool::testing
