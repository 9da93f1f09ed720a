#include "common/text/dates.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>

namespace gpupool {
namespace {

using std::chrono::days;
using std::chrono::sys_days;
using std::chrono::year_month_day;

constexpr int64_t kMinuteMs = 60'000, kDayMs = 24 * 60 * kMinuteMs;
constexpr int64_t kLastDay = 2'932'896;  // 9999-12-31

Error no_time(std::string_view text) {
  return {ErrorCode::invalid, "'" + std::string(text.substr(0, 64)) +
                                  "' is no date or time: write 2026-11-29 (UTC) or 2026-11-29T18:00:00Z"};
}

// Reads fixed fields from a text.
class Fields {
 public:
  explicit Fields(std::string_view text) : left_(text) {}
  // Reads exactly so many digits.
  std::optional<int> number(size_t digits) {
    if (left_.size() < digits) return std::nullopt;
    int value = 0;
    for (const char c : left_.substr(0, digits)) {
      if (c < '0' || c > '9') return std::nullopt;
      value = value * 10 + (c - '0');
    }
    left_.remove_prefix(digits);
    return value;
  }
  bool mark(char c) {
    if (left_.empty() || left_.front() != c) return false;
    left_.remove_prefix(1);
    return true;
  }
  bool at_end() const { return left_.empty(); }

 private:
  std::string_view left_;
};

std::optional<int64_t> read_date(Fields& fields) {
  const auto year = fields.number(4);
  if (!year || !fields.mark('-')) return std::nullopt;
  const auto month = fields.number(2);
  if (!month || !fields.mark('-')) return std::nullopt;
  const auto day = fields.number(2);
  if (!day) return std::nullopt;
  const year_month_day date{std::chrono::year(*year), std::chrono::month(static_cast<unsigned>(*month)),
                            std::chrono::day(static_cast<unsigned>(*day))};
  if (!date.ok()) return std::nullopt;
  return sys_days(date).time_since_epoch().count() * kDayMs;
}

std::optional<int64_t> read_clock(Fields& fields) {
  const auto hour = fields.number(2);
  if (!hour || *hour > 23 || !fields.mark(':')) return std::nullopt;
  const auto minute = fields.number(2);
  if (!minute || *minute > 59) return std::nullopt;
  return (*hour * 60 + *minute) * kMinuteMs;
}

// Reads "Z" or an offset from UTC.
std::optional<int64_t> read_zone(Fields& fields) {
  if (fields.mark('Z')) return 0;
  const bool east = fields.mark('+');
  if (!east && !fields.mark('-')) return std::nullopt;
  const auto offset = read_clock(fields);
  if (!offset) return std::nullopt;
  return east ? *offset : -*offset;
}

std::optional<int64_t> read_time(std::string_view text) {
  Fields fields(text);
  const auto date = read_date(fields);
  if (!date || fields.at_end()) return date;
  if (!fields.mark('T')) return std::nullopt;
  const auto clock = read_clock(fields);
  if (!clock) return std::nullopt;
  int64_t seconds = 0;
  if (fields.mark(':')) {
    const auto read = fields.number(2);
    if (!read || *read > 59) return std::nullopt;
    seconds = *read;
  }
  const auto zone = read_zone(fields);
  if (!zone || !fields.at_end()) return std::nullopt;
  return *date + *clock + seconds * 1000 - *zone;
}

// Days beyond those that can be written become the first or the last one.
year_month_day date_of(int64_t day) {
  return year_month_day{sys_days{days{std::clamp<int64_t>(day, 0, kLastDay)}}};
}

}  // namespace

Result<int64_t> parse_time(std::string_view text) {
  const auto time = read_time(text);
  if (!time || *time < 0) return no_time(text);
  return *time;
}

std::string day_text(int64_t day) {
  const year_month_day date = date_of(day);
  char text[32];
  std::snprintf(text, sizeof text, "%04d-%02u-%02u", static_cast<int>(date.year()),
                static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()));
  return text;
}

std::string time_text(int64_t milliseconds) {
  milliseconds = std::clamp<int64_t>(milliseconds, 0, (kLastDay + 1) * kDayMs - 1);
  const int64_t day = milliseconds / kDayMs, second = milliseconds % kDayMs / 1000;
  char text[32];
  std::snprintf(text, sizeof text, "T%02d:%02d:%02dZ", static_cast<int>(second / 3600),
                static_cast<int>(second / 60 % 60), static_cast<int>(second % 60));
  return day_text(day) + text;
}

int64_t month_begin(int64_t day) {
  const year_month_day date = date_of(day);
  return sys_days(date.year() / date.month() / 1).time_since_epoch().count();
}

int64_t next_month(int64_t day) {
  return month_begin(month_begin(day) + 31);
}

}  // namespace gpupool
