// The fields of pool.UsageAmounts (usage.proto) as a table, and their sum. Used by the scheduler and
// pool-admin. Any thread.
#pragma once
#include <cstdint>
#include <limits>

#include "protocol/control/usage.pb.h"

namespace gpupool::pool {

struct UsageField {
  const char* key;  // in JSON and CSV; the value is divided by `divisor`
  double divisor;
  uint64_t (*get)(const UsageAmounts& amounts);
  void (*set)(UsageAmounts& amounts, uint64_t value);
};

#define USAGE_FIELD(member, key, divisor)                                                   \
  {                                                                                         \
    key, divisor, [](const UsageAmounts& amounts) -> uint64_t { return amounts.member(); }, \
        [](UsageAmounts& amounts, uint64_t value) { amounts.set_##member(value); }          \
  }
// Memory is in KiB times milliseconds, and is shown in bytes times seconds.
inline constexpr UsageField kUsageFields[] = {
    USAGE_FIELD(leased_milli_ms, "leased_gpu_seconds", 1e6),
    USAGE_FIELD(leased_memory_kib_ms, "leased_memory_byte_seconds", 1000.0 / 1024),
    USAGE_FIELD(gpu_nanoseconds, "gpu_seconds", 1e9),
    USAGE_FIELD(used_memory_kib_ms, "used_memory_byte_seconds", 1000.0 / 1024),
    USAGE_FIELD(bytes_from_client, "bytes_from_client", 1),
    USAGE_FIELD(bytes_to_client, "bytes_to_client", 1),
    USAGE_FIELD(energy_millijoules, "energy_joules", 1e3),
};
#undef USAGE_FIELD

// Adds, and stays at the largest value instead of overflowing: nodes could report anything.
inline uint64_t saturating_sum(uint64_t a, uint64_t b) {
  return a > std::numeric_limits<uint64_t>::max() - b ? std::numeric_limits<uint64_t>::max() : a + b;
}
inline void add_amounts(const UsageAmounts& more, UsageAmounts& sum) {
  for (const UsageField& field : kUsageFields)
    field.set(sum, saturating_sum(field.get(sum), field.get(more)));
}

}  // namespace gpupool::pool
