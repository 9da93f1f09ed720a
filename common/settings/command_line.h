// Helper for the command lines of all programs. Header only; needs nothing but CLI11.
#pragma once
#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

namespace gpupool::settings {

// Describes a usage error to the user. Names an unknown option or word before a missing one, which it may be
// a misspelling of.
inline std::string describe_usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> unknown = app.remaining(true);
  if (unknown.empty()) return error.what();
  const auto option = std::find_if(unknown.begin(), unknown.end(),
                                   [](const std::string& word) { return word.starts_with("-"); });
  if (option != unknown.end()) return "unknown option '" + *option + "'";
  const bool is_command = app.get_subcommands().empty() && !app.get_subcommands(nullptr).empty();
  return (is_command ? "unknown command '" : "unexpected argument '") + unknown.front() + "'";
}

}  // namespace gpupool::settings
