#include "tests/server/settings/options_page.h"

#include <algorithm>
#include <stdexcept>

#include "common/settings/option_table.h"
#include "scheduler/service/options.h"
#include "server/poold/options.h"

namespace gpupool::testing {
namespace {

const std::string kEnd = "<!-- end of the list -->\n";

std::string begin_of(const std::string& program) {
  return "<!-- options of " + program + ", made by cmake --build --preset ci --target options -->\n";
}

// Quotes names that are separated by commas. `before`: precedes each name.
std::string quoted(const std::string& names, const std::string& before) {
  std::string text;
  for (size_t at = 0; at < names.size();) {
    const size_t end = std::min(names.find(',', at), names.size());
    text += (text.empty() ? "`" : ", `") + before + names.substr(at, end - at) + "`";
    at = end + 1;
  }
  return text;
}

// "tls.key" is written as `key` in `[tls]`.
std::string key_in_file(const settings::OptionRow& row) {
  if (!row.value.read) return "";
  const size_t dot = row.name.keys.find('.');
  if (dot == std::string::npos) return quoted(row.name.keys, "");
  return "`[" + row.name.keys.substr(0, dot) + "]` `" + row.name.keys.substr(dot + 1) + "`";
}

std::string list_of(const std::string& program, const settings::OptionRows& rows) {
  std::string list =
      begin_of(program) + "| " + program + " | in the file | meaning and default |\n|---|---|---|\n";
  for (const auto& row : rows) {
    if (row.help.find('|') != std::string::npos)
      throw std::runtime_error(row.word() + ": its help text would end the column");
    list += "| " + quoted(row.name.words, "--") + " | " + key_in_file(row) + " | " + row.help + " |\n";
  }
  return list + kEnd;
}

std::string with_list(const std::string& page, const std::string& program, const settings::OptionRows& rows) {
  const size_t begin = page.find(begin_of(program));
  const size_t end = page.find(kEnd, begin);
  if (begin == std::string::npos || end == std::string::npos)
    throw std::runtime_error("no place for the options of " + program);
  return page.substr(0, begin) + list_of(program, rows) + page.substr(end + kEnd.size());
}

}  // namespace

std::string with_lists_of_options(const std::string& page) {
  server::ServerOptions poold;
  scheduler::Options scheduler;
  return with_list(with_list(page, "poold", server::option_rows(poold)), "pool-scheduler",
                   scheduler::option_rows(scheduler));
}

}  // namespace gpupool::testing
