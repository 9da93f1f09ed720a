#include "server/worker/sharing/peers.h"

#include <utility>

namespace gpupool::worker {
namespace {

constexpr size_t kMaxPeers = 64;  // per session

}  // namespace

std::shared_ptr<Peer> Peers::connection_to(const wire::PeerTarget& target) {
  std::erase_if(replaced_, [](const auto& peer) { return peer.use_count() == 1; });
  const Name name{target.address, target.session_id, target.port, target.rdma, target.tls};
  const auto known = peers_.find(name);
  if (known != peers_.end() && !known->second->broken()) return known->second;
  if (known != peers_.end()) {
    replaced_.push_back(std::move(known->second));
    peers_.erase(known);
  }
  if (peers_.size() >= kMaxPeers) return nullptr;
  return peers_[name] = std::make_shared<Peer>(target.rdma != 0, requests_, start_.dead_peer_timeout,
                                               start_.rdma, start_.bandwidth);
}

Result<std::unique_ptr<transport::Connection>> Peers::open(const wire::PeerTarget& target) {
  transport::Options options;
  options.dead_peer_timeout = start_.dead_peer_timeout;
  options.bulk = true;
  auto connection = connect_to_peer(requests_, target, options);
  if (!connection || !start_.bandwidth) return connection;
  return std::unique_ptr<transport::Connection>(
      std::make_unique<MeteredConnection>(std::move(*connection), start_.bandwidth));
}

void Peers::stop() {
  requests_.stop();
  for (const auto& peer : replaced_) peer->stop();
  for (auto& [name, peer] : peers_) peer->stop();
}

}  // namespace gpupool::worker
