// Dates and times of the proleptic Gregorian calendar in UTC, as people and files write them (RFC 3339). Used
// by pool-scheduler and pool-admin. Any thread.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "common/result.h"

namespace gpupool {

// Parses "2026-11-29" (the day's begin in UTC), "2026-11-29T18:00:00Z" or "2026-11-29T18:00:00+01:00"; the
// seconds are optional. Returns milliseconds since 1970. ErrorCode::invalid: the text has none of these
// forms, or the time is before 1970.
Result<int64_t> parse_time(std::string_view text);
// Times before 1970 and after 9999 are written as the first and the last one in between; so are days.
std::string time_text(int64_t milliseconds);  // "2026-11-29T18:00:00Z"
std::string day_text(int64_t day);            // days since 1970 as "2026-11-29"
// Returns the first day of the month that has this day.
int64_t month_begin(int64_t day);
int64_t next_month(int64_t day);  // the first day of the next one

}  // namespace gpupool
