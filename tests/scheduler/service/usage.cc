// Usage: which shares clients can use (clients.h).
#include "tests/scheduler/service/clients.h"

namespace gpupool::testing {

void Usage::granted(const pool::Granted& granted) {
  const std::lock_guard lock(mutex_);
  std::vector<pool::Server> servers(granted.servers().begin(), granted.servers().end());
  for (const pool::Move& move : granted.moves()) servers.push_back(move.to());
  for (const pool::Server& server : servers) {
    const auto key = std::make_pair(server.node(), granted.lease());
    if (ended_leases_.contains(key) || by_lease_.contains(key)) continue;
    auto& shares = by_lease_[key];
    for (const lease::Share& share : server.shares()) {
      shares.push_back(share);
      if ((milli_[share.gpu_uuid()] += share.compute_milli()) > 1000) double_grants_.insert(share.gpu_uuid());
    }
  }
}

void Usage::ended(const std::string& node, const std::string& lease) {
  const std::lock_guard lock(mutex_);
  const auto key = std::make_pair(node, lease);
  ended_leases_.insert(key);
  const auto found = by_lease_.find(key);
  if (found == by_lease_.end()) return;
  for (const lease::Share& share : found->second) milli_[share.gpu_uuid()] -= share.compute_milli();
  by_lease_.erase(found);
}

std::vector<std::string> Usage::double_grants() const {
  const std::lock_guard lock(mutex_);
  return {double_grants_.begin(), double_grants_.end()};
}

size_t Usage::leases() const {
  const std::lock_guard lock(mutex_);
  return by_lease_.size();
}

}  // namespace gpupool::testing
