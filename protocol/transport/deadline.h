// Helpers for deadlines in loops and for poll(). Any thread.
#pragma once
#include <algorithm>

#include "protocol/transport/transport.h"

namespace gpupool::transport {

inline bool passed(const Deadline& deadline) {
  return deadline && Clock::now() >= *deadline;
}

// Timeout for poll() in milliseconds, rounded up; -1 without a deadline. At most an hour, so callers check
// the deadline again.
inline int poll_limit(const Deadline& deadline) {
  if (!deadline) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 3'600'000));
}

}  // namespace gpupool::transport
