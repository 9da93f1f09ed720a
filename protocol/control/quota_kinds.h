// The kinds of quota of a tenant (quota.def), and the units of their values: how poold's configuration,
// pool-admin, JSON and metrics write them. A value of any unit is a uint64_t, as in admin.proto. Constants
// and pure functions; any thread.
#pragma once
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>

#include "common/result.h"

namespace gpupool::quota {

enum class Unit {
  memory,     // bytes, 0 or at least 1 MiB; 0: no limit
  guarantee,  // the same; 0: nothing is guaranteed
  bytes,      // 0: no limit
  rate,       // bytes per second; 0: no limit
  count,      // 0: no limit
  percent,    // thousandths, written as a percentage
  mode,       // Quota.Mode of admin.proto
  priority,   // Quota.Priority of admin.proto
  timeout,    // seconds; 0: off; kDefaultTimeout: poold's
};

constexpr uint32_t kDefaultTimeout = UINT32_MAX;
constexpr uint32_t kLongestTimeout = 3600;

struct Metric {
  const char* name;  // without the prefix gpupool_; null: the kind has no metric
  const char* help;
};

struct Kind {
  const char* member;  // the name of the field in admin.proto
  Unit unit;
  const char* key;    // in the configuration, with underscores
  const char* title;  // of the column of pool-admin
  int importance;     // of the column
  Metric metric;
  const char* help;  // Markdown; ends with the default in brackets
  bool per_gpu;      // may differ on single GPUs
};

constexpr Metric metric(const char* name, const char* help) {
  return {name, help};
}
constexpr Metric no_metric{nullptr, nullptr};

// The kinds in the order of the table, by their members.
enum class KindId : uint32_t {
#define QUOTA_PER_GPU(type, member, initial, unit, key, title, importance, metric, help) member,
#define QUOTA_IN_POOLD QUOTA_PER_GPU
#define QUOTA_IN_WORKERS QUOTA_PER_GPU
#include "protocol/control/quota.def"
};

inline constexpr Kind kKinds[] = {
#define QUOTA_PER_GPU(type, member, initial, unit, key, title, importance, metric, help) \
  {#member, Unit::unit, key, title, importance, metric, help, true},
#define QUOTA_IN_POOLD(type, member, initial, unit, key, title, importance, metric, help) \
  {#member, Unit::unit, key, title, importance, metric, help, false},
#define QUOTA_IN_WORKERS QUOTA_IN_POOLD
#include "protocol/control/quota.def"
};
constexpr size_t kKindCount = std::size(kKinds);
constexpr const Kind& kind_of(KindId id) {
  return kKinds[static_cast<size_t>(id)];
}

// Return null if there is no such kind. The key has underscores or hyphens.
const Kind* find_kind(std::string_view key);
std::string word_of(const Kind& kind);  // on the command line: the key with hyphens
std::string json_key_of(
    const Kind& kind);  // the member, whose value is converted from thousandths to percent
// "memory, guaranteed_memory, compute", for messages.
enum class Spelling { key, word };
std::string names_of_kinds(Spelling spelling, bool only_per_gpu);

// Returns the parser of a unit that is written as a number or as text; null for other units.
Result<uint64_t> (*size_parser(Unit unit))(std::string_view text);

// A unit whose values have names.
struct Choice {
  std::string_view name;
  uint64_t value;
};
std::span<const Choice> choices_of(Unit unit);  // empty: the values have no names
std::string names_of_choices(Unit unit);        // separated by commas
// Returns the name of the value; of the default for unknown values, which a newer program may send.
std::string name_of(Unit unit, uint64_t value);

std::string timeout_text(uint64_t seconds);  // "30 s", "off" or "default"
std::string example_of(Unit unit);           // for help texts; empty for counts
bool is_limit(Unit unit);                    // 0 means no limit

}  // namespace gpupool::quota
