#include "common/admission/peer_rates.h"

#include <iterator>

namespace gpupool {

bool PeerRates::take(const std::string& peer, Clock::time_point now) {
  auto found = by_peer_.find(peer);
  if (found == by_peer_.end()) {
    if (buckets_.size() >= kMostPeers) {
      by_peer_.erase(buckets_.front().peer);
      buckets_.pop_front();
    }
    buckets_.push_back({peer, TokenBucket(limit_, now)});
    found = by_peer_.emplace(buckets_.back().peer, std::prev(buckets_.end())).first;
  }
  buckets_.splice(buckets_.end(), buckets_, found->second);
  return found->second->tokens.take(now);
}

}  // namespace gpupool
