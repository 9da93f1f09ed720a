// Usage of the pool and of its tenants over the last 24 hours, for the web page: one point per minute, the
// mean of samples that are at least ten seconds apart. A point per minute is about one per pixel of a wide
// screen. At most 16 tenants of a point are kept by name, the largest ones; at most 1440 points of some 2 KB.
// In memory only: a restart, or another leader, begins anew. The engine's thread.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "protocol/control/pool_admin.pb.h"
#include "scheduler/json/json.h"

namespace gpupool::pool {

class History {
 public:
  static constexpr int64_t kSampleMs = 10'000, kPointMs = 60'000, kKeptMs = 24 * 3'600'000;
  static constexpr size_t kMostTenants = 16;
  struct Point {
    int64_t begin_ms = 0, end_ms = 0;
    uint64_t compute_milli = 0, compute_milli_leased = 0, waiting = 0;
    std::optional<uint64_t> compute_milli_used;
    std::vector<std::pair<std::string, uint64_t>> tenants;  // compute_milli, largest first
    uint64_t others_milli = 0;                              // of the other tenants
  };
  // Ignores snapshots less than kSampleMs after the last one. `used_milli`: GpuUtilization::total_milli().
  void note(const PoolSnapshot& snapshot, std::optional<uint64_t> used_milli);
  // Oldest first; the last one is of the present minute and not complete.
  std::vector<Point> points() const;
  // Returns {"kept_ms", "begun_ms", "tenants": [name, ...], "points": [[begin_ms, end_ms, compute_milli,
  // compute_milli_leased, compute_milli_used or null, waiting, [[index of the tenant, compute_milli], ...],
  // others_milli], ...]}.
  Json json() const;

 private:
  struct Sums {
    int64_t begin_ms = 0, end_ms = 0;
    uint64_t samples = 0, used_samples = 0;
    uint64_t compute_milli = 0, leased = 0, used = 0, waiting = 0;
    std::map<std::string, uint64_t> tenants;
  };
  static Point mean(const Sums& sums);
  void close();

  std::deque<Point> points_;
  Sums sums_;               // of the present minute
  int64_t sampled_ms_ = 0;  // time of the last sample
};

}  // namespace gpupool::pool
