// Deadlines, as poll() and loops want them.
#pragma once
#include <algorithm>

#include "protocol/transport/transport.h"

namespace gpupool::transport {

inline bool passed(const Deadline& deadline) { return deadline && Clock::now() >= *deadline; }

// Milliseconds for poll(), rounded up; at most an hour, after which its caller looks again.
inline int poll_limit(const Deadline& deadline) {
  if (!deadline) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 3'600'000));
}

}  // namespace gpupool::transport
