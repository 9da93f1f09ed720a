// The breaks of a session's connections, as its worker reports them (docs/adr/0036-sessions-resume.md). For
// administration, metrics and the audit. poold's thread.
#pragma once
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <string>

#include "common/admission/token_bucket.h"
#include "protocol/wire/frame.h"

namespace gpupool::server {

struct Breaks {
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kLinks = wire::kMaxBulkConnections + 1;

  bool client_leaves = false;  // the session is about to end
  // The client's side has closed the session's own connection, and has not returned yet.
  bool abandoned = false;
  std::string wanted_by;  // if abandoned: what needs its slot or memory; empty: nothing
  // Since when each connection has been broken; the zero time: it is not.
  std::array<Clock::time_point, kLinks> since{};
  uint64_t resumed = 0;
  std::chrono::milliseconds waited{0};  // until then
  uint64_t resent_bytes = 0;
  // Limits the records of a worker that reports without end.
  TokenBucket records{{.burst = 20, .per_second = 1}};
  // Limits how many sessions of other tenants end because this worker says that a GPU is full.
  TokenBucket ended_for_it{{.burst = 8, .per_second = 0.2}};

  // How long the first of the connections that are broken now has been.
  std::chrono::milliseconds waiting() const {
    Clock::time_point first = Clock::time_point::max();
    for (const auto& begin : since) {
      if (begin != Clock::time_point{}) first = std::min(first, begin);
    }
    if (first == Clock::time_point::max()) return {};
    return std::chrono::ceil<std::chrono::milliseconds>(Clock::now() - first) + std::chrono::milliseconds(1);
  }
};

// A break, or the end of one, for the audit.
struct BreakEvent {
  uint64_t link = 0;
  bool resumed = false;
  std::chrono::milliseconds waited{0};  // if resumed
  uint64_t resent_bytes = 0;            // if resumed
};

}  // namespace gpupool::server
