#include "server/admission/peer_rates.h"

#include <algorithm>
#include <iterator>

namespace gpupool::server {

bool PeerRates::take(const std::string& peer, Clock::time_point now) {
  auto found = by_peer_.find(peer);
  if (found == by_peer_.end()) {
    if (buckets_.size() >= kMostPeers) {
      by_peer_.erase(buckets_.front().peer);
      buckets_.pop_front();
    }
    buckets_.push_back({peer, limit_.burst, now});
    found = by_peer_.emplace(buckets_.back().peer, std::prev(buckets_.end())).first;
  }
  Bucket& bucket = *found->second;
  buckets_.splice(buckets_.end(), buckets_, found->second);
  const double passed = std::chrono::duration<double>(now - bucket.since).count();
  bucket.tokens = std::min(limit_.burst, bucket.tokens + passed * limit_.per_second);
  bucket.since = now;
  if (bucket.tokens < 1) return false;
  bucket.tokens -= 1;
  return true;
}

}  // namespace gpupool::server
