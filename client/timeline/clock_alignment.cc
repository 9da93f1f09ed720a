#include "client/timeline/clock_alignment.h"

#include <algorithm>

namespace gpupool::client::timeline {

int64_t ClockAlignment::drift_since(int64_t then, int64_t now) const {
  return static_cast<int64_t>(static_cast<double>(std::max<int64_t>(0, now - then)) * kMostDrift);
}

void ClockAlignment::add(int64_t sent, int64_t server_received, int64_t server_sent, int64_t received) {
  const int64_t least = server_sent - received, most = server_received - sent;
  if (received < sent || server_sent < server_received || least > most) return;
  const int64_t drift = drift_since(read_at_, received);
  const int64_t both_least = std::max(least, least_ - drift), both_most = std::min(most, most_ + drift);
  const bool agrees = readings_ != 0 && both_least <= both_most;
  least_ = agrees ? both_least : least;
  most_ = agrees ? both_most : most;
  read_at_ = received;
  if (readings_ < kFirstReadings || offset_ < least_ || offset_ > most_)
    offset_ = least_ + (most_ - least_) / 2;
  readings_ = std::min(readings_ + 1, kFirstReadings);
}

int64_t ClockAlignment::error(int64_t now) const {
  return std::max(most_ - offset_, offset_ - least_) + drift_since(read_at_, now);
}

}  // namespace gpupool::client::timeline
