// Kinds of option values for rows of an option table (option_table.h). A kind is a function from the variable
// to its OptionValue: `text(options.device)`, `count(1, 256)(options.idle_workers)`.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/log/log.h"
#include "common/result.h"
#include "common/settings/option_table.h"

namespace gpupool::settings {

// To make further kinds. `set` gets the command line's value; `choices`, if any, are the only values that the
// command line accepts.
OptionValue text_value(std::function<Result<void>(const std::string& text)> set,
                       std::function<Result<void>(const toml::node& node)> read,
                       std::function<std::string()> show, const std::vector<std::string>& choices = {});
OptionValue flag_value(std::function<void(bool given)> set,
                       std::function<Result<void>(const toml::node& node)> read,
                       std::function<std::string()> show);
OptionValue list_value(std::function<Result<void>(const std::vector<std::string>& texts)> set,
                       std::function<Result<void>(const toml::node& node)> read,
                       std::function<std::string()> show);

namespace kinds {

template <class T>
using Kind = std::function<OptionValue(T& out)>;

OptionValue text(std::string& out);
OptionValue list(std::vector<std::string>& out);        // the option is repeated for each entry
OptionValue comma_list(std::vector<std::string>& out);  // the same, and an option's value may have several
OptionValue flag(bool& out);
OptionValue inverse_flag(bool& out);  // --no-X for the variable X
OptionValue log_level(log::Level& out);
OptionValue log_format(log::Format& out);
Kind<unsigned> count(unsigned lowest, unsigned highest);
// A duration, in seconds on the command line and in the file. The limits are those of the command line; those
// of the file are kLeastSeconds and kMostSeconds.
OptionValue seconds(std::chrono::milliseconds& out);
Kind<std::chrono::milliseconds> seconds_between(double lowest, double highest);
// A number of bytes, with a unit or without.
Kind<uint64_t> bytes(Result<uint64_t> (*parse)(std::string_view));
// Only on the command line, and set as soon as it has been parsed, before the file is read.
OptionValue early_text(std::string& out);
OptionValue early_flag(bool& out);

}  // namespace kinds
}  // namespace gpupool::settings
