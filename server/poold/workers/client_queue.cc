#include "server/poold/workers/client_queue.h"

#include <algorithm>

#include "server/sockets/descriptor_closer.h"

namespace gpupool::server {

ClientQueue::~ClientQueue() {
  for (const Waiting& waiting : waiting_) close_connection(waiting.client.descriptor);
}

size_t ClientQueue::count(const std::function<bool(const Client&)>& which) const {
  return static_cast<size_t>(std::count_if(waiting_.begin(), waiting_.end(),
                                           [&](const Waiting& waiting) { return which(waiting.client); }));
}

size_t ClientQueue::count(const std::string& tenant) const {
  return count([&](const Client& client) { return client.tenant == tenant; });
}

void ClientQueue::add(Client client) {
  Waiting waiting{std::move(client), std::make_unique<asio::steady_timer>(context_), Clock::now() + patience_,
                  next_ticket_++};
  start_timer(waiting);
  waiting_.push_back(std::move(waiting));
}

void ClientQueue::start_timer(Waiting& waiting) {
  waiting.timer->expires_at(std::min(waiting.until, Clock::now() + kLook));
  waiting.timer->async_wait([this, ticket = waiting.ticket](const asio::error_code& status) {
    if (!status) look(ticket);
  });
}

std::set<std::string> ClientQueue::tenants() const {
  std::set<std::string> found;
  for (const Waiting& waiting : waiting_) found.insert(waiting.client.tenant);
  return found;
}

std::optional<ClientQueue::Waiting> ClientQueue::take_first(const std::function<bool(const Client&)>& may) {
  const auto at = std::find_if(waiting_.begin(), waiting_.end(),
                               [&](const Waiting& waiting) { return may(waiting.client); });
  if (at == waiting_.end()) return std::nullopt;
  Waiting first = std::move(*at);
  waiting_.erase(at);
  return first;
}

std::vector<Client> ClientQueue::take_all() {
  std::vector<Client> clients;
  for (Waiting& waiting : std::exchange(waiting_, {})) clients.push_back(std::move(waiting.client));
  return clients;
}

std::vector<std::pair<Client, std::string>> ClientQueue::take(
    const std::function<std::optional<std::string>(const Client&)>& reason) {
  std::vector<std::pair<Client, std::string>> taken;
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    auto why = reason(at->client);
    if (why) taken.emplace_back(std::move(at->client), *std::move(why));
    at = why ? waiting_.erase(at) : std::next(at);
  }
  return taken;
}

void ClientQueue::look(uint64_t ticket) {
  const auto at = std::find_if(waiting_.begin(), waiting_.end(),
                               [ticket](const Waiting& waiting) { return waiting.ticket == ticket; });
  if (at == waiting_.end()) return;
  Place place;
  for (auto before = waiting_.begin(); before != at; ++before) {
    ++place.all;
    place.of_tenant += before->client.tenant == at->client.tenant ? 1u : 0u;
  }
  if (Clock::now() < at->until && has_hope_(at->client, place)) return start_timer(*at);
  Client client = std::move(at->client);
  waiting_.erase(at);
  gave_up_(std::move(client));
}

}  // namespace gpupool::server
