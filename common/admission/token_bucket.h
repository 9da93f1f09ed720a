// A token bucket: starts with `burst` tokens and gains `per_second`. One thread; never fails.
#pragma once
#include <algorithm>
#include <chrono>

namespace gpupool {

class TokenBucket {
 public:
  using Clock = std::chrono::steady_clock;
  struct Limit {
    double burst;
    double per_second;
  };

  explicit TokenBucket(const Limit& limit, Clock::time_point now = Clock::now())
      : limit_(limit), tokens_(limit.burst), since_(now) {}

  // Takes a token. Returns false if there is none left.
  bool take(Clock::time_point now = Clock::now()) {
    tokens_ = std::min(limit_.burst,
                       tokens_ + std::chrono::duration<double>(now - since_).count() * limit_.per_second);
    since_ = now;
    if (tokens_ < 1) return false;
    tokens_ -= 1;
    return true;
  }

 private:
  const Limit limit_;
  double tokens_;
  Clock::time_point since_;
};

}  // namespace gpupool
