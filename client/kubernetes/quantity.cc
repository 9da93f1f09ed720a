#include "client/kubernetes/quantity.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

namespace gpupool::kubernetes {
namespace {

// Returns the factor of a suffix, or 0.
long double factor_of(const std::string& suffix) {
  static const std::map<std::string, long double> factors{
      {"", 1},         {"n", 1e-9L},    {"u", 1e-6L},    {"m", 1e-3L},   {"k", 1e3L},     {"M", 1e6L},
      {"G", 1e9L},     {"T", 1e12L},    {"P", 1e15L},    {"E", 1e18L},   {"Ki", 0x1p10L}, {"Mi", 0x1p20L},
      {"Gi", 0x1p30L}, {"Ti", 0x1p40L}, {"Pi", 0x1p50L}, {"Ei", 0x1p60L}};
  if (const auto found = factors.find(suffix); found != factors.end()) return found->second;
  int exponent = 0;
  if (suffix.size() < 2 || (suffix[0] != 'e' && suffix[0] != 'E')) return 0;
  const char* const begin = suffix.data() + (suffix[1] == '+' ? 2 : 1);
  const char* const end = suffix.data() + suffix.size();
  const auto read = std::from_chars(begin, end, exponent);
  if (read.ec != std::errc() || read.ptr != end || std::abs(exponent) > 30) return 0;
  return std::pow(10.0L, exponent);
}

}  // namespace

Result<uint64_t> parse_milli(const std::string& text) {
  const auto wrong = [&] {
    return Error{ErrorCode::invalid, "'" + text + "' is not a quantity, such as 8Gi or 50"};
  };
  const size_t start = text.starts_with("+") ? 1 : 0;
  const size_t end = std::min(text.find_first_not_of("0123456789.", start), text.size());
  // Digits are collected as a whole number, so that no binary fraction loses anything: 0.1 is 1 and 10^-1.
  long double digits = 0, scale = 1;
  bool point = false, any = false;
  for (size_t at = start; at < end; ++at) {
    if (text[at] == '.') {
      if (point) return wrong();
      point = true;
      continue;
    }
    any = true;
    digits = digits * 10 + (text[at] - '0');
    if (point) scale *= 10;
  }
  const long double factor = factor_of(text.substr(end));
  if (!any || factor == 0) return wrong();
  const long double milli = digits * 1000 * factor / scale;
  if (!(milli < 0x1p63L)) return wrong();
  const long double nearest = std::round(milli);
  // The rounding errors of the lines above are smaller than the smallest quantity, 1n.
  const bool whole = std::abs(milli - nearest) < std::max(1e-9L, milli * 1e-17L);
  return static_cast<uint64_t>(whole ? nearest : std::ceil(milli));
}

}  // namespace gpupool::kubernetes
