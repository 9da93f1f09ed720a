// Serves clients that only query the state of GPUs (protocol/control/monitor.proto), such as NVML's. They get
// no worker. The daemon owns it.
//
// Runs on poold's thread. Input is untrusted: questions are empty frames, answered one at a time and at most
// 50 times per second on each connection; connections are limited in number for each tenant (the one that has
// been silent for longest is dropped) and in time.
#pragma once
#include <asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "protocol/control/hello.pb.h"
#include "protocol/control/monitor.pb.h"
#include "server/poold/workers/refusal.h"
#include "server/poold/workers/worker_pool.h"

namespace gpupool::server {

class MonitorLink;

class Monitors {
 public:
  struct Limits {
    size_t of_tenant = 64;
    size_t all = 1024;
    std::chrono::milliseconds between_answers{20};
    std::chrono::milliseconds silence{60'000};
    std::chrono::milliseconds patience{5'000};  // for a client that does not read
  };
  // Provides the answers. nullopt: none for this client any more.
  struct Source {
    std::function<std::optional<control::HelloReply>(const Client&)> describe;
    std::function<std::optional<control::MonitorState>(const Client&)> look;
  };

  Monitors(asio::io_context& context, const Limits& limits, Source source);
  ~Monitors();
  Monitors(const Monitors&) = delete;
  Monitors& operator=(const Monitors&) = delete;

  // Serves an authenticated client. Takes ownership of its descriptor, unless it returns false: there is no
  // answer for this client.
  bool admit(Client& client);
  size_t count() const { return links_.size(); }
  // Closes the connections of clients for which `clients` returns true.
  void drop_if(const std::function<bool(const Client&)>& clients);
  void close();

 private:
  friend class MonitorLink;
  void make_room(const std::string& tenant);

  asio::io_context& context_;
  const Limits limits_;
  const Source source_;
  std::list<std::shared_ptr<MonitorLink>> links_;  // silent for longest first
};

}  // namespace gpupool::server
