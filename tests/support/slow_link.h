// A link of a chosen round-trip time and bandwidth between clients and poold, on one machine: a proxy that passes every byte
// on after exactly half the round-trip time, in order, however many connections and however much is on its way.
//
// Each direction of each connection has a thread that both receives and sends: what it has received waits, with the time at
// which it is due, until that time; the last microseconds are waited for without sleeping. Threads that do sleep go before
// all others where the system allows it, as a network card would.
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
    double bytes_per_second = 0;  // each way and of all connections together; 0: no limit
    bool first_unlimited = false;  // the first connection, which carries a program's commands, does not count
  };
  SlowLink(const transport::Endpoint& server, const Quality& quality);
  ~SlowLink();
  SlowLink(const SlowLink&) = delete;
  SlowLink& operator=(const SlowLink&) = delete;

  std::string url() const { return "tcp://127.0.0.1:" + std::to_string(port_); }
  // Hangs up on both ends of the connection that came as the `number`th, from 0.
  void cut(size_t number);
  uint64_t bytes_up() const { return up_.bytes; }
  uint64_t bytes_down() const { return down_.bytes; }

 private:
  // One direction of the link: all connections share its bandwidth.
  struct Way {
    std::atomic<int64_t> free_at{0};  // nanoseconds: when the last byte accepted so far will have left
    std::atomic<uint64_t> bytes{0};
    double nanoseconds_per_byte = 0;
  };
  struct Pair;
  void accept_all(const transport::Endpoint& server);
  void carry(int from, int to, Way& way);
  int64_t due(Way& way, int64_t arrived, size_t bytes) const;

  const int64_t delay_;               // nanoseconds, one way
  const bool first_unlimited_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<bool> ending_{false};
  Way up_, down_, first_up_, first_down_;
  std::mutex mutex_;                  // guards pairs_
  std::vector<std::unique_ptr<Pair>> pairs_;
  std::thread acceptor_;
};

}  // namespace gpupool::testing
