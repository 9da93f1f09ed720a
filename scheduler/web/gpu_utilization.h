// How much of each GPU's time was used lately, from the counters that nodes report. For the web page; the
// engine's thread. Unknown for GPUs of which fewer than two reports have come, or whose node has restarted or
// is silent.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "protocol/control/pool_admin.pb.h"

namespace gpupool::pool {

class GpuUtilization {
 public:
  static constexpr int64_t kMeasuredMs = 4'000;  // least time between the two reports of a measurement
  static constexpr int64_t kSilentMs = 30'000;  // since the last report, after which a measurement is dropped
  // Call with each snapshot. Forgets GPUs that are not in it.
  void note(const PoolSnapshot& snapshot);
  // Returns thousandths of the GPU's time.
  std::optional<uint32_t> milli(const PoolGpu& gpu) const;
  // Returns the sum over all GPUs; nothing if none is known.
  std::optional<uint64_t> total_milli() const;

 private:
  struct Counter {
    int64_t at_ms = 0;
    uint64_t nanoseconds = 0;
    std::optional<uint32_t> milli;
  };
  using Key = std::pair<std::string, std::string>;  // node and UUID
  static void measure(Counter& counter, int64_t at_ms, uint64_t nanoseconds);
  std::map<Key, Counter> counters_;
};

}  // namespace gpupool::pool
