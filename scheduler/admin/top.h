// `pool-admin top`: what goes on in a poold, again and again.
#pragma once
#include <chrono>
#include <cstdint>

#include "scheduler/admin/poold.h"

namespace gpupool::admin {

struct TopOptions {
  std::chrono::milliseconds interval{1'000};
  uint64_t count = 0;  // snapshots, then it ends; 0: until q, Ctrl-C or SIGTERM
  bool json = false;   // one line of JSON per snapshot
};

// Those that end top, as something to poll. To be made before any thread, so that none of them gets the signals.
class TopSignals {
 public:
  TopSignals();
  ~TopSignals();
  TopSignals(const TopSignals&) = delete;
  TopSignals& operator=(const TopSignals&) = delete;
  int descriptor() const { return descriptor_; }
  int next() const;

 private:
  int descriptor_;
};

// On a terminal it draws in place, else it prints one snapshot after the other. Throws Failure when poold ends.
void run_top(PooldClient& poold, const TopSignals& signals, const TopOptions& options);

// One picture: rates are since `before`, which may be null.
std::string picture_of(const Snapshot& now, const Snapshot* before, size_t width);

}  // namespace gpupool::admin
