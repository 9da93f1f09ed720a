// A token bucket for each peer (peer.h). The number of peers is limited: the least recently seen one is
// forgotten, and has a full bucket when it returns. One thread; never fails.
#pragma once
#include <list>
#include <string>
#include <string_view>
#include <unordered_map>

#include "common/admission/token_bucket.h"

namespace gpupool {

class PeerRates {
 public:
  using Clock = TokenBucket::Clock;
  using Limit = TokenBucket::Limit;
  static constexpr size_t kMostPeers = 4096;

  explicit PeerRates(const Limit& limit) : limit_(limit) {}

  // Takes a token. Returns false if the peer has none left.
  bool take(const std::string& peer, Clock::time_point now = Clock::now());
  size_t peers() const { return buckets_.size(); }

 private:
  struct Bucket {
    const std::string peer;
    TokenBucket tokens;
  };

  const Limit limit_;
  std::list<Bucket> buckets_;                                                  // least recently seen first
  std::unordered_map<std::string_view, std::list<Bucket>::iterator> by_peer_;  // keys point into buckets_
};

}  // namespace gpupool
