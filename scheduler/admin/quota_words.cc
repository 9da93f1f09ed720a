#include "scheduler/admin/quota_words.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "common/text/suggestion.h"
#include "common/text/units.h"
#include "protocol/control/pool_quota_kinds.h"
#include "protocol/control/quota_fields.h"

namespace gpupool::admin {
namespace {

constexpr const char* kUnlimited = "unlimited";

Error wrong(const std::string& why) {
  return {ErrorCode::invalid, why};
}

Result<uint64_t> parse_count(const std::string& value) {
  uint32_t number = 0;
  const char* const end = value.data() + value.size();
  const auto read = std::from_chars(value.data(), end, number);
  if (read.ec != std::errc() || read.ptr != end) return wrong("'" + value + "' is not an integer");
  return number;
}

Result<uint64_t> parse_percent(const std::string& value) {
  const auto milli = parse_compute(value.ends_with('%') ? value.substr(0, value.size() - 1) : value);
  if (!milli) return milli.error();
  return *milli;
}

Result<uint64_t> parse_choice(quota::Unit unit, const std::string& value) {
  for (const quota::Choice& choice : quota::choices_of(unit)) {
    if (value == choice.name) return choice.value;
  }
  return wrong("'" + value + "' is not one of " + quota::names_of_choices(unit));
}

Result<uint64_t> parse_value(quota::Unit unit, const std::string& value) {
  if (!quota::choices_of(unit).empty()) return parse_choice(unit, value);
  if (unit == quota::Unit::percent) return parse_percent(value);
  if (value == kUnlimited && unit != quota::Unit::timeout) return uint64_t{0};
  const auto parse_size = quota::size_parser(unit);
  return parse_size ? parse_size(value) : parse_count(value);
}

Error unknown_key(const std::string& key) {
  std::vector<std::string> words;
  for (const quota::Kind& kind : quota::kKinds) words.push_back(quota::word_of(kind));
  std::sort(words.begin(), words.end());
  std::string names;
  for (const std::string& word : words) names += (names.empty() ? "" : ", ") + word;
  std::string underscored = key;
  std::replace(underscored.begin(), underscored.end(), '-', '_');
  const bool of_pool = pool::find_quota_kind(underscored) != nullptr;
  return wrong("unknown quota key '" + key + "'; valid keys: " + names +
               (of_pool ? "; '" + key + "' is a quota of a pool: use --scheduler HOST:PORT"
                        : suggestion(key, {words.begin(), words.end()})));
}

// Appends the word to the last line, or begins a new line.
void append_word(const std::string& word, std::string& text) {
  constexpr size_t kWidth = 128;
  const size_t line = text.size() - (text.rfind('\n') + 1);  // npos + 1 is 0
  text += (line + 1 + word.size() > kWidth ? "\n" : " ") + word;
}

}  // namespace

Result<Quota> read_quota_words(const std::vector<std::string>& words) {
  Quota quota;
  std::set<std::string> seen;
  for (const std::string& word : words) {
    const size_t at = word.find('=');
    if (at == word.npos) return wrong("'" + word + "' is not KEY=VALUE");
    std::string key = word.substr(0, at);
    std::replace(key.begin(), key.end(), '_', '-');  // as in the configuration file
    const quota::Kind* const kind = quota::find_kind(key);
    if (!kind) return unknown_key(key);
    if (!seen.insert(key).second) return wrong("'" + key + "' is given twice");
    const auto value = parse_value(kind->unit, word.substr(at + 1));
    if (!value) return wrong(key + ": " + value.error().message);
    quota::field_of(*kind).set(quota, *value);
  }
  return quota;
}

std::string help_on_keys(const std::vector<KeyExample>& keys) {
  std::string text = "Quota keys:";
  for (size_t at = 0; at < keys.size();) {
    const std::string& example = keys[at].example;
    std::vector<std::string> words;
    for (; at < keys.size() && keys[at].example == example; ++at) words.push_back(keys[at].word + ",");
    if (!example.empty()) {
      words.back().back() = ' ';
      // A single key stays on one line with its example.
      if (words.size() > 1) words.back().pop_back(), words.emplace_back();
      words.back() += "(" + example + "),";
    }
    for (const std::string& word : words) append_word(word, text);
  }
  text.back() = ';';
  for (const char* const word : {"unlimited", "or", "0", "removes", "a", "limit."}) append_word(word, text);
  return text;
}

std::string quota_keys_help() {
  std::vector<KeyExample> keys;
  for (const quota::Kind& kind : quota::kKinds) {
    const std::string example = quota::example_of(kind.unit);
    // Keys with the same example follow each other.
    const auto last = std::find_if(keys.rbegin(), keys.rend(),
                                   [&](const KeyExample& key) { return key.example == example; });
    keys.insert(last == keys.rend() ? keys.end() : last.base(), {quota::word_of(kind), example});
  }
  return help_on_keys(keys);
}

}  // namespace gpupool::admin
