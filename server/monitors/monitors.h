// The clients that only watch (protocol/control/monitor.proto): poold answers them itself, and no worker is taken.
//
// poold's one thread. What comes in is not trusted: a question has no content, one is answered at a time, at most fifty in a second on
// one connection, and connections are bounded in number for each tenant (the one that has been silent for longest gives way) and in time.
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
#include "server/refusal.h"
#include "server/worker_pool.h"

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
  // What it shows. nullopt: not to this client any more.
  struct Source {
    std::function<std::optional<control::HelloReply>(const Client&)> describe;
    std::function<std::optional<control::MonitorState>(const Client&)> look;
  };

  Monitors(asio::io_context& context, const Limits& limits, Source source);
  ~Monitors();
  Monitors(const Monitors&) = delete;
  Monitors& operator=(const Monitors&) = delete;

  // A client that has shown whose it is. Takes over its descriptor. False: refused, and the descriptor is still the caller's.
  bool admit(Client& client);
  size_t count() const { return links_.size(); }
  // Those of these clients lose their connections.
  void drop_if(const std::function<bool(const Client&)>& clients);
  void close();

 private:
  friend class MonitorLink;
  void make_room(const std::string& tenant);

  asio::io_context& context_;
  const Limits limits_;
  const Source source_;
  std::list<std::shared_ptr<MonitorLink>> links_;  // that has been silent for longest first
};

}  // namespace gpupool::server
