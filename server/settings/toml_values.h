// Values of TOML files, as poold's and pool-scheduler's configurations have them. Each reads one node and leaves `out` as it was
// where the node is something else; ErrorCode::invalid then says what it must be, without the key, which the caller puts before it.
#pragma once
#include <toml++/toml.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/transport/transport.h"
#include "protocol/wire/result.h"
#include "server/log/log.h"

namespace gpupool::settings {

// What the command line and the files accept.
constexpr double kLeastSeconds = 0.001;
constexpr double kMostSeconds = 86'400;
constexpr const char* kLogLevels = "debug, info, warning, error, off";
constexpr const char* kLogFormats = "text, json";
inline std::chrono::milliseconds to_milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000 + 0.5));
}

inline Error wrong(const std::string& why) { return {ErrorCode::invalid, why}; }

// The whole file, which only its owner and root may write; the error names it, and the line.
Result<toml::table> read_file(const std::string& path);

Result<void> to_text(const toml::node& node, std::string& out);
// A text, or an array of them.
Result<void> to_list(const toml::node& node, std::vector<std::string>& out);
Result<void> to_flag(const toml::node& node, bool& out);
Result<void> to_count(const toml::node& node, uint32_t lowest, uint32_t highest, uint32_t& out);
Result<void> to_seconds(const toml::node& node, std::chrono::milliseconds& out);
// As text with a unit, or as a number of bytes; `parse` reads either as text.
Result<void> to_bytes(const toml::node& node, Result<uint64_t> (*parse)(std::string_view), uint64_t& out);
Result<void> to_level(const toml::node& node, log::Level& out);
Result<void> to_format(const toml::node& node, log::Format& out);
// A table of certificate, key, and the authorities of the other side's certificates under the name `ca`.
Result<void> to_tls(const toml::node& node, std::string_view ca, transport::TlsOptions& out);

// One of the names.
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

// Every key of a table; what is wrong with one is said behind its name.
Result<void> for_each_key(const toml::node& node, const std::function<Result<void>(std::string_view key, const toml::node& value)>& read);
// Every [[key]] of a file; what is wrong with one is said behind its name, or its line where it has no name.
Result<void> for_each_table(const toml::table& file, const std::string& key, const std::function<Result<void>(const toml::table& table)>& read);
// Every entry of an array.
Result<void> for_each_entry(const toml::node& node, const std::function<Result<void>(const toml::node&)>& read);

}  // namespace gpupool::settings
