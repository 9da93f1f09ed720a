// Tests that each row of the daemons' tables of options is an option of the command line, a key of the file,
// and a line of --help and of docs/operations.md.
#include "scheduler/service/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>

#include "common/settings/option_kinds.h"
#include "server/poold/options.h"
#include "tests/server/settings/options_page.h"
#include "tests/support/catch.h"
#include "tests/support/poold_process.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::testing;
using settings::OptionRow;
using settings::OptionRows;

namespace {

// Each option that takes a value accepts at least one of these, which is not its default.
const std::vector<std::string> kValues{
    "7",        "100", "no", "yes", "log", "error", "json", "addresses", "4096", "64GiB", "tcp://127.0.0.1:9",
    "some-text"};

std::vector<std::string> names_in(const std::string& names) {
  return CLI::detail::split(names, ',');
}

Result<void> reject(std::string_view, std::string_view) {
  return Error{ErrorCode::invalid, "unknown key"};
}

// Returns the variable's value after the words have been parsed. Empty: they were rejected.
template <class Options>
std::optional<std::string> from_command_line(size_t row, std::vector<std::string> words) {
  Options options;
  const OptionRows rows = option_rows(options);
  CLI::App app;
  const settings::CommandLine line(app, rows);
  std::reverse(words.begin(), words.end());
  try {
    app.parse(std::move(words));
  } catch (const CLI::ParseError&) {
    return std::nullopt;
  }
  return line.take() ? std::optional(rows[row].value.show()) : std::nullopt;
}

// The same for a file with this text.
template <class Options>
std::optional<std::string> from_file(size_t row, const std::string& text) {
  Options options;
  const OptionRows rows = option_rows(options);
  try {
    const bool good = settings::read_options(toml::parse(text), rows, reject).ok();
    return good ? std::optional(rows[row].value.show()) : std::nullopt;
  } catch (const toml::parse_error&) {
    return std::nullopt;
  }
}

// Returns words with which the command line sets the row's variable to another value than its default.
template <class Options>
std::optional<std::vector<std::string>> words_for(const OptionRow& row, size_t number,
                                                  const std::string& word) {
  const std::string initial = row.value.show();
  if (row.value.is_flag) return std::vector{"--" + word};
  for (const std::string& value : kValues) {
    const auto set = from_command_line<Options>(number, {"--" + word, value});
    if (set && *set != initial) return std::vector{"--" + word, value};
  }
  return std::nullopt;
}

template <class Options>
bool is_accepted_in_file(size_t row, const std::string& key, const std::string& value,
                         const std::string& expected) {
  for (const std::string& form : {value, '"' + value + '"', std::string("true"), std::string("false")}) {
    if (from_file<Options>(row, key + " = " + form) == expected) return true;
  }
  return false;
}

template <class Options>
void check_row(const OptionRow& row, size_t number) {
  INFO(row.word());
  const std::string initial = row.value.show();
  for (const std::string& word : names_in(row.name.words)) {
    const auto words = words_for<Options>(row, number, word);
    REQUIRE(words);  // else kValues needs a value for it
    const auto set = from_command_line<Options>(number, *words);
    REQUIRE(set);
    CHECK(*set != initial);
    for (const std::string& key : names_in(row.name.keys)) {
      INFO(key);
      if (row.value.read)
        CHECK(is_accepted_in_file<Options>(number, key, words->back(), *set));
      else
        CHECK_FALSE(is_accepted_in_file<Options>(number, key, words->back(), *set));
    }
  }
}

template <class Options>
void check_rows(const std::string& program) {
  Options options;
  const OptionRows rows = option_rows(options);
  REQUIRE(rows.size() > 10);
  const Finished help = run_to_end({program_path(program), "--help"});
  REQUIRE(help.status == 0);
  for (size_t number = 0; number < rows.size(); ++number) {
    check_row<Options>(rows[number], number);
    INFO(rows[number].word());
    CHECK(help.output.find("  " + rows[number].word()) != std::string::npos);
    CHECK(help.output.find(rows[number].help + "\n") != std::string::npos);
  }
}

// The options of a test, with a kind of each sort.
struct Few {
  std::string name = "first";
  unsigned size = 3;
  bool quick = false;
};

OptionRows option_rows(Few& few) {
  using namespace settings::kinds;
  return {{settings::named("name", "table.name"), text(few.name), "a name"},
          {"size", count(1, 9)(few.size), "a size"},
          {"quick", flag(few.quick), "a flag"}};
}

}  // namespace

TEST_CASE("each row of poold's options is accepted on the command line and in the file, and is in --help") {
  check_rows<server::ServerOptions>("poold");
}

TEST_CASE(
    "each row of pool-scheduler's options is accepted on the command line and in the file, and is in "
    "--help") {
  check_rows<scheduler::Options>("pool-scheduler");
}

TEST_CASE("docs/operations.md lists each option") {
  std::ifstream in(OPERATIONS_PAGE);
  const std::string page((std::istreambuf_iterator<char>(in)), {});
  const bool same = page == with_lists_of_options(page);
  INFO("make the lists in docs/operations.md anew: cmake --build --preset dev --target options");
  CHECK(same);
}

TEST_CASE("a row's default and limits appear in its help text, and values outside of them are rejected") {
  Few few;
  const OptionRows rows = option_rows(few);
  CHECK(rows[0].help == "a name [first]");
  CHECK(rows[1].help == "a size [3]");
  CHECK(rows[2].help == "a flag");
  CHECK(from_command_line<Few>(1, {"--size", "9"}) == "9");
  CHECK_FALSE(from_command_line<Few>(1, {"--size", "10"}));
  CHECK(from_file<Few>(1, "size = 9") == "9");
  CHECK_FALSE(from_file<Few>(1, "size = 10"));
}

TEST_CASE("the command line overrides the file, and options that it does not have keep the file's values") {
  Few few;
  const OptionRows rows = option_rows(few);
  CLI::App app;
  const settings::CommandLine line(app, rows);
  app.parse("--size 5");
  REQUIRE(settings::read_options(toml::parse("size = 7\nquick = true\n[table]\nname = \"second\""), rows,
                                 reject));
  CHECK(few.size == 7);
  REQUIRE(line.take());
  CHECK(few.size == 5);
  CHECK(few.quick);
  CHECK(few.name == "second");
}

TEST_CASE("an error in the file names the table, the key and what the value must be") {
  Few few;
  const OptionRows rows = option_rows(few);
  const auto error_of = [&](const std::string& text) {
    const auto read = settings::read_options(toml::parse(text), rows, reject);
    return read ? "" : read.error().message;
  };
  CHECK(error_of("size = \"large\"") == "size: must be an integer from 1 to 9");
  CHECK(error_of("[table]\nname = 1") == "table: name: must be a string");
  CHECK(error_of("[table]\nother = 1") == "table: other: unknown key");
  CHECK(error_of("table = 1") == "table: must be a table");
  CHECK(error_of("name = \"x\"") == "name: unknown key");
}
