#include "protocol/control/quota_kinds.h"

#include <algorithm>
#include <charconv>

#include "common/text/units.h"

namespace gpupool::quota {
namespace {

// The first choice is not the default of each unit: default_of() has that.
constexpr Choice kModes[] = {{"hard", 1}, {"elastic", 0}, {"partition", 2}};
constexpr Choice kPriorities[] = {{"best-effort", 0}, {"normal", 1}, {"latency-critical", 2}};

uint64_t default_of(Unit unit) {
  return unit == Unit::priority ? 1 : 0;
}

Result<uint64_t> parse_timeout(std::string_view text) {
  if (text == "off") return uint64_t{0};
  if (text == "default") return uint64_t{kDefaultTimeout};
  uint64_t seconds = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size() || seconds > kLongestTimeout)
    return Error{ErrorCode::invalid,
                 "must be off, default, or seconds from 0 to " + std::to_string(kLongestTimeout)};
  return seconds;
}

std::string with(std::string_view text, char before, char after) {
  std::string out(text);
  std::replace(out.begin(), out.end(), before, after);
  return out;
}

}  // namespace

const Kind* find_kind(std::string_view key) {
  const std::string wanted = with(key, '-', '_');
  const auto* const found = std::find_if(std::begin(kKinds), std::end(kKinds),
                                         [&](const Kind& kind) { return wanted == kind.key; });
  return found == std::end(kKinds) ? nullptr : found;
}

std::string word_of(const Kind& kind) {
  return with(kind.key, '_', '-');
}

std::string json_key_of(const Kind& kind) {
  std::string key = kind.member;
  constexpr std::string_view kMilli = "_milli";
  if (kind.unit == Unit::percent && key.ends_with(kMilli))
    key.replace(key.size() - kMilli.size(), kMilli.size(), "_percent");
  return key;
}

std::string names_of_kinds(Spelling spelling, bool only_per_gpu) {
  std::string names;
  for (const Kind& kind : kKinds) {
    if (only_per_gpu && !kind.per_gpu) continue;
    names += (names.empty() ? "" : ", ") + (spelling == Spelling::key ? kind.key : word_of(kind));
  }
  return names;
}

Result<uint64_t> (*size_parser(Unit unit))(std::string_view) {
  switch (unit) {
    case Unit::memory:
    case Unit::guarantee: return parse_memory;
    case Unit::bytes: return parse_size;
    case Unit::rate: return parse_rate;
    case Unit::timeout: return parse_timeout;
    default: return nullptr;
  }
}

std::span<const Choice> choices_of(Unit unit) {
  if (unit == Unit::mode) return kModes;
  if (unit == Unit::priority) return kPriorities;
  return {};
}

std::string names_of_choices(Unit unit) {
  std::string names;
  for (const Choice& choice : choices_of(unit))
    names += (names.empty() ? "" : ", ") + std::string(choice.name);
  return names;
}

std::string name_of(Unit unit, uint64_t value) {
  std::string_view name;
  for (const Choice& choice : choices_of(unit)) {
    if (choice.value == value) return std::string(choice.name);
    if (choice.value == default_of(unit)) name = choice.name;
  }
  return std::string(name);
}

std::string timeout_text(uint64_t seconds) {
  if (seconds == kDefaultTimeout) return "default";
  return seconds == 0 ? "off" : std::to_string(seconds) + " s";
}

std::string example_of(Unit unit) {
  switch (unit) {
    case Unit::memory:
    case Unit::guarantee:
    case Unit::bytes: return "8GiB, 512MiB";
    case Unit::rate: return "1GB/s";
    case Unit::percent: return "0.1 to 100, percent of each GPU";
    case Unit::mode:
    case Unit::priority: return names_of_choices(unit);
    case Unit::timeout: return "seconds, off, default";
    case Unit::count: break;
  }
  return "";
}

bool is_limit(Unit unit) {
  return unit == Unit::memory || unit == Unit::bytes || unit == Unit::rate || unit == Unit::count;
}

}  // namespace gpupool::quota
