// Clients that wait until a worker is ready or a session slot is free, in order of arrival. Each waits for a
// limited time.
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
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/poold/workers/client.h"

namespace gpupool::server {

class ClientQueue {
 public:
  using Clock = std::chrono::steady_clock;
  struct Waiting {
    Client client;
    std::unique_ptr<asio::steady_timer> timer;
    Clock::time_point until;
    uint64_t ticket = 0;
  };
  // A client's place: how many clients would be served by its turn, and how many of them are its tenant's.
  struct Place {
    size_t all = 1, of_tenant = 1;
  };
  using HasHope = std::function<bool(const Client&, const Place&)>;
  // How often a client's hope is checked.
  static constexpr std::chrono::milliseconds kLook{1'000};
  // `gave_up` receives a client that has waited for `patience`, or that has no hope after a multiple of
  // kLook.
  ClientQueue(asio::io_context& context, std::chrono::milliseconds patience, HasHope has_hope,
              std::function<void(Client)> gave_up)
      : context_(context),
        patience_(patience),
        has_hope_(std::move(has_hope)),
        gave_up_(std::move(gave_up)) {}
  ~ClientQueue();  // closes the clients' connections
  ClientQueue(const ClientQueue&) = delete;
  ClientQueue& operator=(const ClientQueue&) = delete;

  bool empty() const { return waiting_.empty(); }
  size_t size() const { return waiting_.size(); }
  size_t count(const std::string& tenant) const;
  size_t count(const std::function<bool(const Client&)>& which) const;
  std::set<std::string> tenants() const;
  void add(Client client);
  // The first one that `may` accepts; nullopt: none.
  std::optional<Waiting> take_first(const std::function<bool(const Client&)>& may);
  // Puts a client back that take_first() has returned; its time goes on.
  void put_back(Waiting first) { waiting_.push_front(std::move(first)); }
  std::vector<Client> take_all();
  // Takes the clients for which `reason` returns a text, with that text.
  std::vector<std::pair<Client, std::string>> take(
      const std::function<std::optional<std::string>(const Client&)>& reason);

 private:
  void start_timer(Waiting& waiting);
  void look(uint64_t ticket);

  asio::io_context& context_;
  const std::chrono::milliseconds patience_;
  const HasHope has_hope_;
  const std::function<void(Client)> gave_up_;
  std::deque<Waiting> waiting_;
  uint64_t next_ticket_ = 1;
};

}  // namespace gpupool::server
