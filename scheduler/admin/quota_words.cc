#include "scheduler/admin/quota_words.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <set>

#include "common/text/suggestion.h"
#include "common/text/units.h"

namespace gpupool::admin {
namespace {

// Parses the value of one key and sets it in the quota.
using Read = std::function<Result<void>(const std::string& value, Quota& quota)>;

constexpr const char* kUnlimited = "unlimited";

Read bytes(void (Quota::*set)(uint64_t), Result<uint64_t> (*parse)(std::string_view)) {
  return [set, parse](const std::string& value, Quota& quota) -> Result<void> {
    const auto read = value == kUnlimited ? Result<uint64_t>(0) : parse(value);
    if (!read) return read.error();
    (quota.*set)(*read);
    return {};
  };
}

Read count(void (Quota::*set)(uint32_t)) {
  return [set](const std::string& value, Quota& quota) -> Result<void> {
    uint32_t number = 0;
    const char* const end = value.data() + value.size();
    const auto read = std::from_chars(value.data(), end, number);
    if (value != kUnlimited && (read.ec != std::errc() || read.ptr != end)) {
      return Error{ErrorCode::invalid, "'" + value + "' is not an integer"};
    }
    (quota.*set)(number);
    return {};
  };
}

Result<void> compute(const std::string& value, Quota& quota) {
  const auto milli = parse_compute(value.ends_with('%') ? value.substr(0, value.size() - 1) : value);
  if (!milli) return milli.error();
  quota.set_compute_milli(*milli);
  return {};
}

Result<void> mode(const std::string& value, Quota& quota) {
  if (value == "hard")
    quota.set_mode(Quota::HARD);
  else if (value == "elastic")
    quota.set_mode(Quota::ELASTIC);
  else if (value == "partition")
    quota.set_mode(Quota::PARTITION);
  else
    return Error{ErrorCode::invalid, "'" + value + "' is not one of hard, elastic, partition"};
  return {};
}

Result<void> priority(const std::string& value, Quota& quota) {
  if (value == "best-effort")
    quota.set_priority(Quota::BEST_EFFORT);
  else if (value == "normal")
    quota.set_priority(Quota::NORMAL);
  else if (value == "latency-critical")
    quota.set_priority(Quota::LATENCY_CRITICAL);
  else
    return Error{ErrorCode::invalid, "'" + value + "' is not one of best-effort, normal, latency-critical"};
  return {};
}

const std::map<std::string, Read>& keys() {
  static const std::map<std::string, Read> all{
      {"memory", bytes(&Quota::set_memory_bytes, &parse_memory)},
      {"guaranteed-memory", bytes(&Quota::set_guaranteed_memory_bytes, &parse_memory)},
      {"compute", compute},
      {"mode", mode},
      {"priority", priority},
      {"bandwidth-to-device", bytes(&Quota::set_to_device_bytes_per_second, &parse_rate)},
      {"bandwidth-to-host", bytes(&Quota::set_to_host_bytes_per_second, &parse_rate)},
      {"sessions", count(&Quota::set_sessions)},
      {"streams", count(&Quota::set_streams)},
      {"modules", count(&Quota::set_modules)},
      {"queued-bytes", bytes(&Quota::set_queued_bytes, &parse_size)},
  };
  return all;
}

}  // namespace

Result<Quota> read_quota_words(const std::vector<std::string>& words) {
  Quota quota;
  std::set<std::string> seen;
  for (const std::string& word : words) {
    const size_t at = word.find('=');
    if (at == word.npos) return Error{ErrorCode::invalid, "'" + word + "' is not KEY=VALUE"};
    std::string key = word.substr(0, at);
    std::replace(key.begin(), key.end(), '_', '-');  // as in the configuration file
    const auto known = keys().find(key);
    if (known == keys().end()) {
      std::string names;
      std::vector<std::string_view> all;
      for (const auto& [name, read] : keys())
        names += (names.empty() ? "" : ", ") + name, all.push_back(name);
      const bool of_pool = key == "gpus" || key == "leases" || key == "waiting" || key == "weight" ||
                           key == "highest-priority";
      return Error{ErrorCode::invalid,
                   "unknown quota key '" + key + "'; valid keys: " + names +
                       (of_pool ? "; '" + key + "' is a quota of a pool: use --scheduler HOST:PORT"
                                : suggestion(key, all))};
    }
    if (!seen.insert(key).second) return Error{ErrorCode::invalid, "'" + key + "' is given twice"};
    if (const auto read = known->second(word.substr(at + 1), quota); !read) {
      return Error{ErrorCode::invalid, key + ": " + read.error().message};
    }
  }
  return quota;
}

}  // namespace gpupool::admin
