#include "common/settings/toml_values.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <regex>

#include "common/files/exposure.h"

namespace gpupool::settings {
namespace {

bool is_bare_value(const std::string& text) {
  char* end = nullptr;
  std::strtod(text.c_str(), &end);
  return text == "true" || text == "false" || *end == '\0';
}

// Shows how to write a value on this line that lacks quotes; empty if none does.
std::string quotes_hint(const std::string& path, unsigned number) {
  std::ifstream file(path);
  std::string line;
  for (unsigned i = 0; i < number && std::getline(file, line); ++i) {
  }
  static const std::regex kPair(R"(([\w-]+)\s*=\s*([^\s"'\[{,}#][^\s,}#]*))");
  for (std::sregex_iterator pair(line.begin(), line.end(), kPair), end; pair != end; ++pair) {
    const auto before = line.begin() + pair->position();
    const bool quoted =
        std::count(line.begin(), before, '"') % 2 != 0 || std::count(line.begin(), before, '\'') % 2 != 0;
    if (!quoted && !is_bare_value(pair->str(2)))
      return "; strings need quotes: " + pair->str(1) + " = \"" + pair->str(2) + "\"";
  }
  return "";
}

}  // namespace

Result<toml::table> read_file(const std::string& path) {
  if (const auto checked = files::check_not_writable(path); !checked)
    return wrong("configuration file: " + checked.error().message);
  try {
    return toml::table(toml::parse_file(path));
  } catch (const toml::parse_error& error) {
    const auto line = error.source().begin.line;
    return wrong("configuration file '" + path + "'" + (line > 0 ? ", line " + std::to_string(line) : "") +
                 ": " + std::string(error.description()) + quotes_hint(path, line));
  }
}

Result<void> to_text(const toml::node& node, std::string& out) {
  const auto value = node.value_exact<std::string>();
  if (!value) return wrong("must be a string");
  out = *value;
  return {};
}

Result<void> to_list(const toml::node& node, std::vector<std::string>& out) {
  std::vector<std::string> texts;
  const toml::array one{node};
  for (const toml::node& entry : node.is_array() ? *node.as_array() : one) {
    if (!to_text(entry, texts.emplace_back())) return wrong("must be a string or an array of strings");
  }
  out = std::move(texts);
  return {};
}

Result<void> to_flag(const toml::node& node, bool& out) {
  const auto value = node.value_exact<bool>();
  if (!value) return wrong("must be true or false");
  out = *value;
  return {};
}

Result<void> to_count(const toml::node& node, uint32_t lowest, uint32_t highest, uint32_t& out) {
  const auto value = node.value_exact<int64_t>();
  if (!value || *value < lowest || *value > highest) {
    return wrong("must be an integer from " + std::to_string(lowest) + " to " + std::to_string(highest));
  }
  out = static_cast<uint32_t>(*value);
  return {};
}

Result<void> to_seconds(const toml::node& node, std::chrono::milliseconds& out) {
  const auto value = node.value<double>();
  if (!node.is_number() || !value || !(*value >= kLeastSeconds && *value <= kMostSeconds)) {
    return wrong("must be a number of seconds from 0.001 to 86400");
  }
  out = to_milliseconds(*value);
  return {};
}

Result<void> to_bytes(const toml::node& node, Result<uint64_t> (*parse)(std::string_view), uint64_t& out) {
  const auto number = node.value_exact<int64_t>();
  const auto parsed = parse(number ? std::to_string(*number) : node.value_exact<std::string>().value_or(""));
  if (!parsed) return parsed.error();
  out = *parsed;
  return {};
}

Result<void> to_level(const toml::node& node, log::Level& out) {
  const auto value = node.value_exact<std::string>();
  return value && log::parse(*value, out) ? Result<void>()
                                          : wrong(std::string("must be one of ") + kLogLevels);
}

Result<void> to_format(const toml::node& node, log::Format& out) {
  const auto value = node.value_exact<std::string>();
  return value && log::parse(*value, out) ? Result<void>()
                                          : wrong(std::string("must be one of ") + kLogFormats);
}

Result<void> for_each_key(
    const toml::node& node,
    const std::function<Result<void>(std::string_view key, const toml::node& value)>& read) {
  const toml::table* const table = node.as_table();
  if (!table) return wrong("must be a table");
  for (const auto& [key, value] : *table) {
    if (const auto done = read(key.str(), value); !done)
      return wrong(std::string(key.str()) + ": " + done.error().message);
  }
  return {};
}

Result<void> for_each_table(const toml::table& file, const std::string& key,
                            const std::function<Result<void>(const toml::table& table)>& read) {
  const toml::node* const node = file.get(key);
  if (!node) return {};
  const Error shape = wrong(key + ": must be an array of tables; write [[" + key + "]]" +
                            (node->is_table() ? ", not [" + key + "]" : ""));
  const toml::array* const list = node->as_array();
  if (!list) return shape;
  for (const toml::node& entry : *list) {
    const toml::table* const table = entry.as_table();
    if (!table) return shape;
    const auto done = read(*table);
    if (done) continue;
    const auto name = (*table)["name"].value_exact<std::string>();
    return wrong(key + (name ? " '" + *name + "'" : " at line " + std::to_string(entry.source().begin.line)) +
                 ": " + done.error().message);
  }
  return {};
}

Result<void> for_each_entry(const toml::node& node,
                            const std::function<Result<void>(const toml::node&)>& read) {
  const toml::array* const list = node.as_array();
  if (!list) return wrong("must be an array");
  for (const toml::node& entry : *list) {
    if (auto done = read(entry); !done) return done;
  }
  return {};
}

}  // namespace gpupool::settings
