#include "tests/server/settings/options_page.h"

#include <algorithm>
#include <stdexcept>

#include "common/settings/option_table.h"
#include "protocol/control/quota_kinds.h"
#include "scheduler/service/options.h"
#include "server/poold/options.h"

namespace gpupool::testing {
namespace {

const std::string kEnd = "<!-- end of the list -->\n";

std::string begin_of(const std::string& what) {
  return "<!-- " + what + ", made by cmake --build --preset dev --target options -->\n";
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
  std::string list = begin_of("options of " + program) + "| " + program +
                     " | in the file | meaning and default |\n|---|---|---|\n";
  for (const auto& row : rows) {
    if (row.help.find('|') != std::string::npos)
      throw std::runtime_error(row.word() + ": its help text would end the column");
    list += "| " + quoted(row.name.words, "--") + " | " + key_in_file(row) + " | " + row.help + " |\n";
  }
  return list + kEnd;
}

// Replaces the list that begins with the same line as `list`.
std::string with_list(const std::string& page, const std::string& list) {
  const std::string first_line = list.substr(0, list.find('\n') + 1);
  const size_t begin = page.find(first_line);
  const size_t end = page.find(kEnd, begin);
  if (begin == std::string::npos || end == std::string::npos)
    throw std::runtime_error("no place for the list that begins with " + first_line);
  return page.substr(0, begin) + list + page.substr(end + kEnd.size());
}

std::string list_of_quotas() {
  std::string list = begin_of("keys of a quota") + "| key | meaning and default |\n|---|---|\n";
  for (const quota::Kind& kind : quota::kKinds)
    list += "| `" + std::string(kind.key) + "` | " + kind.help + " |\n";
  return list + kEnd;
}

}  // namespace

std::string with_lists_of_options(const std::string& page) {
  server::ServerOptions poold;
  scheduler::Options scheduler;
  std::string made = with_list(page, list_of_quotas());
  made = with_list(made, list_of("poold", server::option_rows(poold)));
  return with_list(made, list_of("pool-scheduler", scheduler::option_rows(scheduler)));
}

}  // namespace gpupool::testing
