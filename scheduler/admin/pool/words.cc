#include "scheduler/admin/pool/words.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "common/text/suggestion.h"
#include "common/text/units.h"
#include "protocol/control/pool_policy_kinds.h"
#include "protocol/control/pool_quota_kinds.h"
#include "protocol/control/priority.h"

namespace gpupool::admin {
namespace {

using pool::Policy;
using pool::TenantQuota;

constexpr const char* kUnlimited = "unlimited";

Error wrong(const std::string& why) {
  return {ErrorCode::invalid, why};
}

template <class T>
using Read = std::function<Result<void>(const std::string& value, T& out)>;
template <class T>
using Keys = std::map<std::string, Read<T>>;

Result<uint32_t> parse_number(const std::string& value, double unit) {
  if (value == kUnlimited) return uint32_t{0};
  double read = 0;
  const auto parsed = std::from_chars(value.data(), value.data() + value.size(), read);
  const bool good = !value.empty() && parsed.ec == std::errc() && parsed.ptr == value.data() + value.size();
  const double scaled = std::round(read * unit);
  if (!good || !(scaled >= 0 && scaled <= UINT32_MAX) || (unit == 1 && read != scaled))
    return wrong("'" + value + "' is not " + (unit == 1 ? "an integer" : "a number of seconds"));
  return static_cast<uint32_t>(scaled);
}

Result<uint64_t> parse_limit(pool::QuotaUnit unit, const std::string& value) {
  if (unit == pool::QuotaUnit::priority) {
    const auto named = pool::parse_priority(value);
    if (!named) return wrong("'" + value + "' is not " + pool::kPriorityNames);
    return static_cast<uint64_t>(*named);
  }
  if (value == kUnlimited) return uint64_t{0};
  if (unit == pool::QuotaUnit::gpus) return parse_gpus(value);
  if (unit == pool::QuotaUnit::memory) return parse_memory(value);
  if (unit == pool::QuotaUnit::rate) return parse_rate(value);
  const auto number = parse_number(value, 1);
  if (!number) return number.error();
  return uint64_t{*number};
}

Keys<TenantQuota> quota_keys() {
  Keys<TenantQuota> keys;
  for (const pool::QuotaKind& kind : pool::kQuotaKinds) {
    keys[kind.word()] = [&kind](const std::string& value, TenantQuota& out) -> Result<void> {
      const auto read = parse_limit(kind.unit, value);
      if (!read) return read.error();
      kind.set(out, *read);
      return {};
    };
  }
  return keys;
}

Result<void> placement(const std::string& value, Policy& out) {
  out.set_placement(value);  // validated by the scheduler
  return {};
}

Result<uint64_t> parse_policy(pool::PolicyUnit unit, const std::string& value) {
  using Unit = pool::PolicyUnit;
  if (unit == Unit::on_off) {
    if (value != "on" && value != "off") return wrong("'" + value + "' is neither on nor off");
    return uint64_t{value == "on"};
  }
  if (unit == Unit::end_suspend) {
    if (value != "end" && value != "suspend") return wrong("'" + value + "' is neither end nor suspend");
    return uint64_t{value == "suspend"};
  }
  if (unit == Unit::rate) return parse_rate(value);
  if (unit == Unit::bytes_limit) return value == kUnlimited ? Result<uint64_t>(0) : parse_memory(value);
  const auto number = parse_number(value, unit == Unit::seconds || unit == Unit::seconds_limit ? 1000 : 1);
  if (!number) return number.error();
  return uint64_t{*number};
}

Keys<Policy> policy_keys() {
  Keys<Policy> keys{{"placement", placement}};
  for (const pool::PolicyKind& kind : pool::kPolicyKinds) {
    keys[kind.key] = [&kind](const std::string& value, Policy& out) -> Result<void> {
      const auto read = parse_policy(kind.unit, value);
      if (!read) return read.error();
      if (*read > kind.largest) return wrong("'" + value + "' is too large");
      kind.set(out, *read);
      return {};
    };
  }
  return keys;
}

// Explains how a pool's quota expresses a key of a poold's quota; empty for other keys.
std::string hint_for_poold_key(const std::string& key, const std::string& value) {
  if (key != "compute") return "";
  const auto milli = parse_compute(value.ends_with('%') ? value.substr(0, value.size() - 1) : value);
  return "; a pool's quota is a number of GPUs" +
         (milli ? ": " + percent_text(*milli) + " percent of one is gpus=" + milli_text(*milli)
                : ", like gpus=0.5");
}

template <class T>
Result<T> read_words(const std::vector<std::string>& words, const Keys<T>& keys, const std::string& what) {
  T out;
  std::set<std::string> seen;
  for (const std::string& word : words) {
    const size_t at = word.find('=');
    if (at == word.npos) return wrong("'" + word + "' is not KEY=VALUE");
    std::string key = word.substr(0, at);
    std::replace(key.begin(), key.end(), '_', '-');  // as in the configuration file
    const auto known = keys.find(key);
    if (known == keys.end()) {
      std::string names;
      std::vector<std::string_view> all;
      for (const auto& [name, read] : keys) names += (names.empty() ? "" : ", ") + name, all.push_back(name);
      const std::string hint = hint_for_poold_key(key, word.substr(at + 1));
      return wrong(what + ": unknown key '" + key + "'; valid keys: " + names +
                   (hint.empty() || !keys.contains("gpus") ? suggestion(key, all) : hint));
    }
    if (!seen.insert(key).second) return wrong("'" + key + "' is given twice");
    if (const auto read = known->second(word.substr(at + 1), out); !read)
      return wrong(key + ": " + read.error().message);
  }
  return out;
}

}  // namespace

Result<TenantQuota> read_tenant_quota(const std::vector<std::string>& words) {
  static const Keys<TenantQuota> keys = quota_keys();
  return read_words(words, keys, "a tenant's quota");
}

Result<Policy> read_policy(const std::vector<std::string>& words) {
  static const Keys<Policy> keys = policy_keys();
  return read_words(words, keys, "the policy");
}

}  // namespace gpupool::admin
