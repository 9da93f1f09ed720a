// Readers for values of poold's and pool-scheduler's TOML files. Each reads one node; a node of another type
// leaves `out` unchanged and returns ErrorCode::invalid with what it must be. The caller prefixes the key.
#pragma once
#include <toml++/toml.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/log/log.h"
#include "common/result.h"

namespace gpupool::settings {

// Limits and names that command lines and files share.
constexpr double kLeastSeconds = 0.001;
constexpr double kMostSeconds = 86'400;
constexpr const char* kLogLevels = "debug, info, warning, error, off";
constexpr const char* kLogFormats = "text, json";
inline std::chrono::milliseconds to_milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000 + 0.5));
}

inline Error wrong(const std::string& why) {
  return {ErrorCode::invalid, why};
}

// Reads the file, which only its owner and root may be able to write. Errors name the file and the line.
Result<toml::table> read_file(const std::string& path);

Result<void> to_text(const toml::node& node, std::string& out);
// Reads a string, or an array of strings.
Result<void> to_list(const toml::node& node, std::vector<std::string>& out);
Result<void> to_flag(const toml::node& node, bool& out);
Result<void> to_count(const toml::node& node, uint32_t lowest, uint32_t highest, uint32_t& out);
Result<void> to_seconds(const toml::node& node, std::chrono::milliseconds& out);
// Reads a string with a unit, or a number of bytes. `parse` gets either as text.
Result<void> to_bytes(const toml::node& node, Result<uint64_t> (*parse)(std::string_view), uint64_t& out);
Result<void> to_level(const toml::node& node, log::Level& out);
Result<void> to_format(const toml::node& node, log::Format& out);

// Reads one of the names.
template <class T, size_t N>
Result<void> to_choice(const toml::node& node, const std::pair<std::string_view, T> (&choices)[N], T& out) {
  const auto text = node.value_exact<std::string>();
  std::string names;
  for (const auto& [name, value] : choices) {
    if (text && *text == name) {
      out = value;
      return {};
    }
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  return wrong("must be one of " + names);
}

// Calls `read` for each key of a table. An error begins with the key.
Result<void> for_each_key(
    const toml::node& node,
    const std::function<Result<void>(std::string_view key, const toml::node& value)>& read);
// Calls `read` for each [[key]] of a file. An error begins with the key and the table's name, or its line if
// it has none.
Result<void> for_each_table(const toml::table& file, const std::string& key,
                            const std::function<Result<void>(const toml::table& table)>& read);
// Calls `read` for each entry of an array.
Result<void> for_each_entry(const toml::node& node,
                            const std::function<Result<void>(const toml::node&)>& read);

}  // namespace gpupool::settings
