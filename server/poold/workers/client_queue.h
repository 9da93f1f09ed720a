// Clients that wait until a worker is ready, in order of arrival. Each waits for a limited time.
// poold's thread.
#pragma once
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/poold/workers/client.h"

namespace gpupool::server {

class ClientQueue {
 public:
  struct Waiting {
    Client client;
    std::unique_ptr<asio::steady_timer> patience;
    uint64_t ticket = 0;
  };
  // Receives a client that has waited for `patience`.
  ClientQueue(asio::io_context& context, std::chrono::milliseconds patience,
              std::function<void(Client)> gave_up)
      : context_(context), patience_(patience), gave_up_(std::move(gave_up)) {}
  ~ClientQueue();  // closes the clients' connections
  ClientQueue(const ClientQueue&) = delete;
  ClientQueue& operator=(const ClientQueue&) = delete;

  bool empty() const { return waiting_.empty(); }
  size_t size() const { return waiting_.size(); }
  size_t count(const std::string& tenant) const;
  void add(Client client);
  Waiting take_first();
  // Puts a client back that take_first() has returned; its time goes on.
  void put_back(Waiting first) { waiting_.push_front(std::move(first)); }
  std::vector<Client> take_all();
  // Takes the clients for which `reason` returns a text, with that text.
  std::vector<std::pair<Client, std::string>> take(
      const std::function<std::optional<std::string>(const Client&)>& reason);

 private:
  void give_up(uint64_t ticket);

  asio::io_context& context_;
  const std::chrono::milliseconds patience_;
  const std::function<void(Client)> gave_up_;
  std::deque<Waiting> waiting_;
  uint64_t next_ticket_ = 1;
};

}  // namespace gpupool::server
