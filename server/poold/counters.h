// Counters that an upgrade hands over by name, so that metrics go on (server/poold/upgrade/state.proto).
// poold's thread.
//
// A part of poold that counts has for_each_counter(visit), which calls visit(name, reference) for each
// counter.
#pragma once
#include "server/poold/upgrade/state.pb.h"

namespace gpupool::server {

template <class... Part>
void save_counters(upgrade::State& to, Part&... parts) {
  const auto save = [&](const char* name, uint64_t& value) { (*to.mutable_counters())[name] = value; };
  (parts.for_each_counter(save), ...);
}

// A counter that the previous program did not have begins at 0.
template <class... Part>
void restore_counters(const upgrade::State& from, Part&... parts) {
  const auto restore = [&](const char* name, uint64_t& value) {
    const auto before = from.counters().find(name);
    if (before != from.counters().end()) value = before->second;
  };
  (parts.for_each_counter(restore), ...);
}

}  // namespace gpupool::server
