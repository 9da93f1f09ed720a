#include "common/text/units.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <iterator>

namespace gpupool {
namespace {

struct Unit {
  std::string_view name;
  uint64_t bytes;
};
constexpr Unit kUnits[] = {{"TiB", 1ull << 40},
                           {"TB", 1'000'000'000'000},
                           {"GiB", 1ull << 30},
                           {"GB", 1'000'000'000},
                           {"MiB", 1ull << 20},
                           {"MB", 1'000'000},
                           {"KiB", 1ull << 10},
                           {"kB", 1'000},
                           {"B", 1}};
constexpr uint64_t kLeastMemory = 1 << 20;
constexpr size_t kMostDigits = 18;  // on either side of the point, so that 128 bits suffice

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

Error not_one(std::string_view text, const char* what, const std::string& examples) {
  return {ErrorCode::invalid, "'" + std::string(text) + "' is not a " + what + "; write it as " + examples};
}

// Takes digits from the front of `text`.
bool take_number(std::string_view& text, uint64_t& number, size_t& digits) {
  digits = static_cast<size_t>(std::find_if_not(text.begin(), text.end(), is_digit) - text.begin());
  if (digits == 0 || digits > kMostDigits) return false;
  std::from_chars(text.data(), text.data() + digits, number);
  text.remove_prefix(digits);
  return true;
}

bool parse(std::string_view text, uint64_t& bytes) {
  uint64_t whole = 0, fraction = 0;
  size_t digits = 0;
  if (!take_number(text, whole, digits)) return false;
  unsigned __int128 scale = 1;
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    if (!take_number(text, fraction, digits)) return false;
    for (size_t i = 0; i < digits; ++i) scale *= 10;
  }
  if (text.starts_with(' ')) text.remove_prefix(1);
  const Unit* const unit = std::find_if(std::begin(kUnits), std::end(kUnits),
                                        [&](const Unit& known) { return known.name == text; });
  const bool plain = text.empty() && scale == 1;
  if (unit == std::end(kUnits) && !plain) return false;
  const unsigned __int128 one = plain ? 1 : unit->bytes;
  if (one * fraction % scale != 0) return false;
  const unsigned __int128 all = one * whole + one * fraction / scale;
  bytes = static_cast<uint64_t>(all);
  return all == bytes;
}

// Corrects a size whose unit is not written exactly: "2GiB or 2GB" for "2G", "2GB" for "2gb". Empty for
// anything else.
std::string with_right_unit(std::string_view text) {
  const size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string_view number = text.substr(0, end);
  const auto lower = [](std::string_view word) {
    std::string out(word);
    std::transform(out.begin(), out.end(), out.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return out;
  };
  const std::string unit = lower(text.substr(std::min(text.find_first_not_of(' ', end), text.size())));
  std::string forms;
  for (const Unit& known : kUnits) {
    const std::string form = std::string(number) + std::string(known.name);
    uint64_t bytes = 0;
    if (unit.empty() || !lower(known.name).starts_with(unit) || !parse(form, bytes)) continue;
    forms += (forms.empty() ? "" : " or ") + form;
  }
  return forms;
}

}  // namespace

Result<uint64_t> parse_size(std::string_view text) {
  uint64_t bytes = 0;
  if (parse(text, bytes)) return bytes;
  const std::string right = with_right_unit(text);
  return not_one(text, "size", right.empty() ? "8GiB, 512MiB, 1.5GB or 1048576 (bytes)" : right);
}

Result<uint64_t> parse_memory(std::string_view text) {
  const auto bytes = parse_size(text);
  if (!bytes || *bytes == 0 || *bytes >= kLeastMemory) return bytes;
  const bool plain = std::all_of(text.begin(), text.end(), is_digit);
  std::string hint = "the minimum is 1MiB";
  if (plain && *bytes < 10'000)
    hint = "did you mean " + std::string(text) + (*bytes < 1024 ? "GiB?" : "MiB?");
  return Error{ErrorCode::invalid, "'" + std::string(text) + "' is " + counted(*bytes, "byte") + ": " + hint};
}

Result<uint64_t> parse_rate(std::string_view text) {
  uint64_t bytes = 0;
  std::string_view size = text;
  if (size.ends_with("/s")) size.remove_suffix(2);
  if (parse(size, bytes)) return bytes;
  const std::string right = with_right_unit(size);
  return not_one(text, "rate",
                 right.empty() ? "1GB/s, 250MiB/s or 125000000 (bytes per second)" : right + ", per second");
}

Result<uint32_t> parse_compute(std::string_view text) {
  uint64_t whole = 0, tenths = 0;
  size_t digits = 0;
  std::string_view rest = text;
  const bool good =
      take_number(rest, whole, digits) && whole <= 100 &&
      (rest.empty() || (rest.starts_with('.') && (rest.remove_prefix(1), take_number(rest, tenths, digits)) &&
                        digits == 1 && rest.empty()));
  const uint64_t milli = 10 * whole + tenths;
  if (!good || milli < 1 || milli > kWholeGpu) {
    return Error{ErrorCode::invalid,
                 "must be a percentage from 0.1 to 100, in steps of 0.1, such as 25 or 12.5"};
  }
  return static_cast<uint32_t>(milli);
}

std::string percent_text(uint64_t milli) {
  return std::to_string(milli / 10) + (milli % 10 == 0 ? "" : "." + std::to_string(milli % 10));
}

Result<uint64_t> parse_gpus(std::string_view text) {
  double number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size() || !(number >= 0 && number <= 1e9)) {
    return not_one(text, "number of GPUs", "2 or 0.5");
  }
  return static_cast<uint64_t>(std::llround(number * kWholeGpu));
}

std::string milli_text(uint64_t milli) {
  std::string text = std::to_string(milli / 1000);
  if (milli % 1000 == 0) return text;
  text += "." + std::to_string(1000 + milli % 1000).substr(1);
  return text.substr(0, text.find_last_not_of('0') + 1);
}

std::string gpus_text(uint64_t milli) {
  return milli_text(milli) + (milli <= kWholeGpu ? " GPU" : " GPUs");
}

std::string counted(uint64_t number, const std::string& what) {
  return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
}

std::string bytes_text(uint64_t bytes) {
  constexpr const char* kNames[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  size_t unit = 0;
  double value = static_cast<double>(bytes);
  for (; value >= 1024 && unit + 1 < std::size(kNames); ++unit) value /= 1024;
  char text[64];
  std::snprintf(text, sizeof text, unit == 0 || value >= 100 ? "%.0f %s" : "%.1f %s", value, kNames[unit]);
  return text;
}

std::string size_text(uint64_t bytes) {
  for (const Unit& unit : kUnits) {
    if (bytes != 0 && bytes % unit.bytes == 0 && unit.bytes != 1)
      return std::to_string(bytes / unit.bytes) + std::string(unit.name);
  }
  return std::to_string(bytes);
}

}  // namespace gpupool
