#include "common/settings/option_table.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "common/settings/command_line.h"
#include "common/settings/toml_values.h"

namespace gpupool::settings {
namespace {

constexpr int kUsageError = 2;  // the daemons' exit status

std::vector<std::string> split(const std::string& names) {
  return CLI::detail::split(names, ',');
}

std::string dashed_words(const std::string& words) {
  std::string dashed;
  for (const std::string& word : split(words)) dashed += (dashed.empty() ? "--" : ",--") + word;
  return dashed;
}

std::string path_of(std::string_view table, std::string_view key) {
  return (table.empty() ? "" : std::string(table) + ".") + std::string(key);
}

bool has_key(const OptionRow& row, const std::string& path) {
  const auto keys = split(row.name.keys);
  return row.value.read && std::find(keys.begin(), keys.end(), path) != keys.end();
}

bool is_in_table(const OptionRow& row, std::string_view table) {
  return row.value.read && row.name.keys.starts_with(std::string(table) + ".");
}

Result<void> read_keys(const toml::node& node, std::string_view table, const OptionRows& rows,
                       const OtherKey& other) {
  return for_each_key(node, [&](std::string_view key, const toml::node& value) -> Result<void> {
    const std::string path = path_of(table, key);
    const auto row =
        std::find_if(rows.begin(), rows.end(), [&](const auto& one) { return has_key(one, path); });
    if (row != rows.end()) return row->value.read(value);
    const bool is_table =
        std::any_of(rows.begin(), rows.end(), [&](const auto& one) { return is_in_table(one, path); });
    return is_table ? read_keys(value, path, rows, other) : other(table, key);
  });
}

}  // namespace

OptionRow::OptionRow(OptionName name, OptionValue value, const std::string& help)
    : name(std::move(name)), value(std::move(value)), help(help) {
  const std::string initial = this->value.is_flag ? "" : this->value.show();
  if (!initial.empty() && !help.ends_with("]")) this->help += " [" + initial + "]";
}

std::string OptionRow::word() const {
  return "--" + split(name.words).front();
}

CommandLine::CommandLine(CLI::App& app, const OptionRows& rows) : app_(app) {
  for (const OptionRow& row : rows)
    added_.push_back({row.word(), row.value.add(app, dashed_words(row.name.words), row.help)});
}

std::optional<int> CommandLine::parse(int count, char** words) {
  try {
    app_.parse(count, words);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app_.exit(error);
    const std::string program = app_.get_name();
    std::fprintf(stderr, "%s: %s; see %s --help\n", program.c_str(),
                 describe_usage_error(app_, error).c_str(), program.c_str());
    return kUsageError;
  }
}

Result<void> CommandLine::take() const {
  for (const auto& [word, take] : added_) {
    if (!take) continue;
    if (const auto taken = take(); !taken) return wrong(word + ": " + taken.error().message);
  }
  return {};
}

Result<void> read_options(const toml::table& file, const OptionRows& rows, const OtherKey& other) {
  return read_keys(file, "", rows, other);
}

Result<void> read_options_file(const std::string& path, const OptionRows& rows, const OtherKey& other,
                               const std::function<Result<void>(const toml::table& file)>& rest) {
  const auto file = read_file(path);
  if (!file) return file.error();
  auto read = read_options(*file, rows, other);
  if (read) read = rest(*file);
  return read ? read : wrong("configuration file '" + path + "': " + read.error().message);
}

std::string keys_in_table(std::string_view table, const OptionRows& rows) {
  std::string keys;
  for (const OptionRow& row : rows) {
    if (is_in_table(row, table)) keys += (keys.empty() ? "" : ", ") + row.name.keys.substr(table.size() + 1);
  }
  return keys;
}

}  // namespace gpupool::settings
