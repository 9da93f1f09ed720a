// Names of lease priorities for users: pool-run, pool-admin and pool-scheduler's configuration. Values; any
// thread.
#pragma once
#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "protocol/control/lease.pb.h"

namespace gpupool::pool {

constexpr const char* kPriorityNames = "low, normal or high";

inline const char* text_of(lease::Priority priority) {
  if (priority == lease::BEST_EFFORT) return "low";
  return priority == lease::LATENCY_CRITICAL ? "high" : "normal";
}

// Also accepts the names of lease.proto.
inline std::optional<lease::Priority> parse_priority(std::string_view name) {
  constexpr std::pair<std::string_view, lease::Priority> kNames[] = {
      {"low", lease::BEST_EFFORT},
      {"normal", lease::NORMAL},
      {"high", lease::LATENCY_CRITICAL},
      {"best-effort", lease::BEST_EFFORT},
      {"latency-critical", lease::LATENCY_CRITICAL}};
  const auto found = std::find_if(std::begin(kNames), std::end(kNames),
                                  [&](const auto& known) { return known.first == name; });
  return found == std::end(kNames) ? std::nullopt : std::optional(found->second);
}

}  // namespace gpupool::pool
