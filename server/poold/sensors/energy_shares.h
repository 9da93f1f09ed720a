// Divides a GPU's energy among sessions, in proportion to the GPU time that each has used since the energy
// was divided last. Energy of a time in which no session used the GPU is nobody's. Used by UsageCounters, on
// poold's thread.
#pragma once
#include <cstdint>
#include <map>
#include <vector>

namespace gpupool::server {

class EnergyShares {
 public:
  struct Used {
    uint64_t session;
    uint64_t gpu_nanoseconds;  // counter
  };
  struct Share {
    uint64_t session;
    uint64_t millijoules;
  };
  // `millijoules`: the GPU's counter. Returns nothing the first time, and while the counter stands still.
  std::vector<Share> divide(uint64_t millijoules, const std::vector<Used>& sessions) {
    if (millijoules == last_ && has_last_) return {};
    const uint64_t energy = has_last_ && millijoules > last_ ? millijoules - last_ : 0;
    std::map<uint64_t, uint64_t> now;
    std::vector<Share> shares;
    double total = 0;
    for (const Used& used : sessions) {
      now[used.session] = used.gpu_nanoseconds;
      total += static_cast<double>(since(used));
    }
    for (const Used& used : sessions) {
      if (energy == 0 || since(used) == 0) continue;
      const double part = static_cast<double>(since(used)) / total;
      shares.push_back({used.session, static_cast<uint64_t>(static_cast<double>(energy) * part + 0.5)});
    }
    counters_ = std::move(now);
    last_ = millijoules;
    has_last_ = true;
    return shares;
  }

 private:
  // GPU time since the last division; of a new session, all that it has used.
  uint64_t since(const Used& used) const {
    const auto before = counters_.find(used.session);
    const uint64_t last = before == counters_.end() ? 0 : before->second;
    return used.gpu_nanoseconds > last ? used.gpu_nanoseconds - last : 0;
  }
  std::map<uint64_t, uint64_t> counters_;  // by session
  uint64_t last_ = 0;
  bool has_last_ = false;
};

}  // namespace gpupool::server
