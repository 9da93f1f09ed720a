#include "server/poold/workers/client_queue.h"

#include <algorithm>

#include "server/sockets/descriptor_closer.h"

namespace gpupool::server {

ClientQueue::~ClientQueue() {
  for (const Waiting& waiting : waiting_) close_connection(waiting.client.descriptor);
}

size_t ClientQueue::count(const std::string& tenant) const {
  return static_cast<size_t>(std::count_if(waiting_.begin(), waiting_.end(), [&](const Waiting& waiting) {
    return waiting.client.tenant == tenant;
  }));
}

void ClientQueue::add(Client client) {
  Waiting waiting{std::move(client), std::make_unique<asio::steady_timer>(context_, patience_),
                  next_ticket_++};
  waiting.patience->async_wait([this, ticket = waiting.ticket](const asio::error_code& status) {
    if (!status) give_up(ticket);
  });
  waiting_.push_back(std::move(waiting));
}

ClientQueue::Waiting ClientQueue::take_first() {
  Waiting first = std::move(waiting_.front());
  waiting_.pop_front();
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

void ClientQueue::give_up(uint64_t ticket) {
  const auto at = std::find_if(waiting_.begin(), waiting_.end(),
                               [ticket](const Waiting& waiting) { return waiting.ticket == ticket; });
  if (at == waiting_.end()) return;
  Client client = std::move(at->client);
  waiting_.erase(at);
  gave_up_(std::move(client));
}

}  // namespace gpupool::server
