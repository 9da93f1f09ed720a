#include "common/settings/option_kinds.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <sstream>
#include <type_traits>

#include "common/settings/toml_values.h"

namespace gpupool::settings {
namespace {

using ReadNode = std::function<Result<void>(const toml::node& node)>;
using Show = std::function<std::string()>;
using Adjust = std::function<void(CLI::Option& option)>;  // for limits and the like

template <class T>
CLI::Option* add_to(CLI::App& app, const std::string& words, T& out, const std::string& help) {
  if constexpr (std::is_same_v<T, bool>)
    return app.add_flag(words, out, help);
  else
    return app.add_option(words, out, help);
}

// T: the type as which CLI11 parses the value.
template <class T>
OptionValue make_value(std::function<Result<void>(const T& given)> set, ReadNode read, Show show,
                       Adjust adjust = {}) {
  const auto add = [set = std::move(set), adjust = std::move(adjust)](CLI::App& app, const std::string& words,
                                                                      const std::string& help) -> TakeValue {
    const auto given = std::make_shared<T>();
    CLI::Option* const option = add_to(app, words, *given, help);
    if (adjust) adjust(*option);
    return [set, given, option] { return option->count() > 0 ? set(*given) : Result<void>(); };
  };
  return {add, std::move(read), std::move(show), std::is_same_v<T, bool>};
}

template <class T>
OptionValue make_early_value(T& out, Show show) {
  const auto add = [&out](CLI::App& app, const std::string& words, const std::string& help) -> TakeValue {
    add_to(app, words, out, help);
    return {};
  };
  return {add, {}, std::move(show), std::is_same_v<T, bool>};
}

// Copies the value from the command line unchanged.
template <class T>
std::function<Result<void>(const T& given)> copy_to(T& out) {
  return [&out](const T& given) -> Result<void> {
    out = given;
    return {};
  };
}

Show show_flag(const bool& flag) {
  return [&flag] { return flag ? "true" : "false"; };
}

Show show_list(const std::vector<std::string>& list) {
  return [&list] { return CLI::detail::join(list, ","); };
}

std::string show_seconds(std::chrono::milliseconds time) {
  std::ostringstream text;
  text << static_cast<double>(time.count()) / 1000;
  return text.str();
}

void take_one_word(CLI::Option& option) {
  option.allow_extra_args(false);
}

template <class T>
Result<void> parse_name(const std::string& name, const char* names, T& out) {
  return log::parse(name, out) ? Result<void>() : wrong("'" + name + "' is not one of " + names);
}

}  // namespace

OptionValue text_value(std::function<Result<void>(const std::string& text)> set, ReadNode read, Show show,
                       const std::vector<std::string>& choices) {
  const auto check = [choices](CLI::Option& option) {
    if (!choices.empty()) option.check(CLI::IsMember(choices));
  };
  return make_value<std::string>(std::move(set), std::move(read), std::move(show), check);
}

OptionValue flag_value(std::function<void(bool given)> set, ReadNode read, Show show) {
  const auto good = [set = std::move(set)](const bool& given) -> Result<void> {
    set(given);
    return {};
  };
  return make_value<bool>(good, std::move(read), std::move(show));
}

OptionValue list_value(std::function<Result<void>(const std::vector<std::string>& texts)> set, ReadNode read,
                       Show show) {
  return make_value<std::vector<std::string>>(std::move(set), std::move(read), std::move(show),
                                              take_one_word);
}

namespace kinds {

OptionValue text(std::string& out) {
  return text_value(
      copy_to(out), [&out](const toml::node& node) { return to_text(node, out); }, [&out] { return out; });
}

OptionValue list(std::vector<std::string>& out) {
  return list_value(
      copy_to(out), [&out](const toml::node& node) { return to_list(node, out); }, show_list(out));
}

OptionValue comma_list(std::vector<std::string>& out) {
  return make_value<std::vector<std::string>>(
      copy_to(out), [&out](const toml::node& node) { return to_list(node, out); }, show_list(out),
      [](CLI::Option& option) { option.delimiter(',')->allow_extra_args(false); });
}

OptionValue flag(bool& out) {
  return make_value<bool>(
      copy_to(out), [&out](const toml::node& node) { return to_flag(node, out); }, show_flag(out));
}

OptionValue inverse_flag(bool& out) {
  const auto read = [&out](const toml::node& node) {
    bool off = false;
    auto read = to_flag(node, off);
    if (read) out = !off;
    return read;
  };
  return flag_value([&out](bool given) { out = !given; }, read, [&out] { return out ? "false" : "true"; });
}

OptionValue log_level(log::Level& out) {
  return text_value([&out](const std::string& name) { return parse_name(name, kLogLevels, out); },
                    [&out](const toml::node& node) { return to_level(node, out); },
                    [&out] { return log::name_of(out); });
}

OptionValue log_format(log::Format& out) {
  return text_value([&out](const std::string& name) { return parse_name(name, kLogFormats, out); },
                    [&out](const toml::node& node) { return to_format(node, out); },
                    [&out] { return out == log::Format::json ? "json" : "text"; });
}

Kind<unsigned> count(unsigned lowest, unsigned highest) {
  return [=](unsigned& out) {
    return make_value<unsigned>(
        copy_to(out), [=, &out](const toml::node& node) { return to_count(node, lowest, highest, out); },
        [&out] { return std::to_string(out); },
        [=](CLI::Option& option) { option.check(CLI::Range(lowest, highest)); });
  };
}

OptionValue seconds(std::chrono::milliseconds& out) {
  return seconds_between(kLeastSeconds, kMostSeconds)(out);
}

Kind<std::chrono::milliseconds> seconds_between(double lowest, double highest) {
  return [=](std::chrono::milliseconds& out) {
    const auto set = [&out](const double& given) -> Result<void> {
      out = to_milliseconds(given);
      return {};
    };
    return make_value<double>(
        set, [&out](const toml::node& node) { return to_seconds(node, out); },
        [&out] { return show_seconds(out); },
        [=](CLI::Option& option) { option.check(CLI::Range(lowest, highest)); });
  };
}

Kind<uint64_t> bytes(Result<uint64_t> (*parse)(std::string_view)) {
  return [=](uint64_t& out) {
    const auto set = [=, &out](const std::string& text) -> Result<void> {
      const auto parsed = parse(text);
      if (!parsed) return parsed.error();
      out = *parsed;
      return {};
    };
    return text_value(
        set, [=, &out](const toml::node& node) { return to_bytes(node, parse, out); },
        [&out] { return std::to_string(out); });
  };
}

OptionValue early_text(std::string& out) {
  return make_early_value(out, [&out] { return out; });
}

OptionValue early_flag(bool& out) {
  return make_early_value(out, show_flag(out));
}

}  // namespace kinds
}  // namespace gpupool::settings
