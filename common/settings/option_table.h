// The options of a daemon as a table: each row is an option of the command line, a key of the TOML file, a
// line of --help and a line of docs/operations.md. The rows come from server/poold/options.def,
// server/poold/node/pool_options.def and scheduler/service/options.def; option_kinds.h has the kinds of
// values.
//
// Rows refer to the variables that they set, which must outlive them. Called while a daemon starts and on
// SIGHUP, by one thread.
#pragma once
#include <toml++/toml.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/result.h"

namespace CLI {
class App;
}

namespace gpupool::settings {

// Sets the variable to the value that the command line has, if it has one.
using TakeValue = std::function<Result<void>()>;

// Reads one kind of value into one variable.
struct OptionValue {
  // Adds the option to the command line. The returned function is called after the file has been read, which
  // it overrides; it is empty if parsing itself sets the variable.
  std::function<TakeValue(CLI::App& app, const std::string& words, const std::string& help)> add;
  // Reads the value from the file. Empty: the option is not in the file.
  std::function<Result<void>(const toml::node& node)> read;
  std::function<std::string()> show;  // the variable's value, as the command line would set it
  bool is_flag = false;               // takes no value on the command line
};

struct OptionName {
  OptionName(const char* both) : words(both), keys(both) {}  // implicit, for rows
  OptionName(std::string words, std::string keys) : words(std::move(words)), keys(std::move(keys)) {}
  std::string words;  // on the command line, without the dashes; alternatives are separated by commas
  std::string keys;   // in the file, separated by commas; "tls.key" is `key` in [tls]
};

inline OptionName named(std::string words, std::string keys) {
  return {std::move(words), std::move(keys)};
}

struct OptionRow {
  // Appends the variable's present value to the help text, which is its default, unless the text already ends
  // with a default in brackets, or the value is empty.
  OptionRow(OptionName name, OptionValue value, const std::string& help);
  std::string word() const;  // the first word, with its dashes
  OptionName name;
  OptionValue value;
  std::string help;
};
using OptionRows = std::vector<OptionRow>;

// The options of a command line.
class CommandLine {
 public:
  CommandLine(CLI::App& app, const OptionRows& rows);
  // Parses the words. Returns the exit status if the daemon must not start: after --help, --version or a
  // usage error, whose text has been printed.
  std::optional<int> parse(int count, char** words);
  // Sets the variables of the given options, in the order of the rows. An error begins with the option.
  Result<void> take() const;

 private:
  struct Added {
    std::string word;
    TakeValue take;
  };
  CLI::App& app_;
  std::vector<Added> added_;
};

// Handles a key that no row has. `table` is empty if the key is not in a table.
using OtherKey = std::function<Result<void>(std::string_view table, std::string_view key)>;

// Sets the variables of the keys in `file`. An error begins with the key.
Result<void> read_options(const toml::table& file, const OptionRows& rows, const OtherKey& other);
// Reads the file: first the options, then calls `rest` for everything else. Errors name the file and the key.
Result<void> read_options_file(const std::string& path, const OptionRows& rows, const OtherKey& other,
                               const std::function<Result<void>(const toml::table& file)>& rest);
// Lists the keys that the rows have in [table], separated by commas, for messages.
std::string keys_in_table(std::string_view table, const OptionRows& rows);

}  // namespace gpupool::settings
