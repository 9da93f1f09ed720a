// Tests of dates and times as text.
#include "common/text/dates.h"

#include "tests/support/catch.h"

using namespace gpupool;

TEST_CASE("dates and times are read in UTC or with an offset") {
  CHECK(*parse_time("1970-01-01") == 0);
  CHECK(*parse_time("2026-11-29") == 20'786 * int64_t{86'400'000});
  CHECK(*parse_time("2026-11-29T18:00:01Z") == *parse_time("2026-11-29") + 18 * 3'600'000 + 1'000);
  CHECK(*parse_time("2026-11-29T18:00Z") == *parse_time("2026-11-29T18:00:00Z"));
  CHECK(*parse_time("2026-11-29T18:00:00+01:30") == *parse_time("2026-11-29T16:30:00Z"));
  CHECK(*parse_time("2026-11-29T18:00:00-02:00") == *parse_time("2026-11-29T20:00:00Z"));
  CHECK(*parse_time("2024-02-29") - *parse_time("2024-02-28") == 86'400'000);
}

TEST_CASE("what is no date is refused") {
  for (const char* const text : {"",
                                 "2026",
                                 "2026-11",
                                 "2026-13-01",
                                 "2026-02-29",
                                 "2026-00-10",
                                 "2026-11-31",
                                 "2026-11-29 ",
                                 " 2026-11-29",
                                 "2026-11-29T",
                                 "2026-11-29T18",
                                 "2026-11-29T18:00",
                                 "2026-11-29T24:00:00Z",
                                 "2026-11-29T18:60:00Z",
                                 "2026-11-29T18:00:61Z",
                                 "2026-11-29T18:00:00",
                                 "2026-11-29T18:00:00Zx",
                                 "2026-11-29T18:00:00+1",
                                 "today",
                                 "1969-12-31",
                                 "-026-11-29",
                                 "2026-1-29",
                                 "1970-01-01T00:00:00+00:01"}) {
    INFO(text);
    CHECK(!parse_time(text));
  }
  CHECK(parse_time(std::string(100'000, '9')).error().message.size() < 200);
}

TEST_CASE("times are written as they are read") {
  for (const char* const text : {"1970-01-01T00:00:00Z", "2026-11-29T18:05:09Z", "2099-12-31T23:59:59Z"})
    CHECK(time_text(*parse_time(text)) == text);
  CHECK(time_text(INT64_MIN) == "1970-01-01T00:00:00Z");
  CHECK(time_text(INT64_MAX) == "9999-12-31T23:59:59Z");
  CHECK(day_text(INT64_MAX) == "9999-12-31");
  CHECK(day_text(0) == "1970-01-01");
  CHECK(day_text(20'786) == "2026-11-29");
}

TEST_CASE("months begin on their first day") {
  const auto day = [](const char* text) { return *parse_time(text) / 86'400'000; };
  CHECK(month_begin(day("2026-11-29")) == day("2026-11-01"));
  CHECK(month_begin(day("2026-11-01")) == day("2026-11-01"));
  CHECK(next_month(day("2026-12-31")) == day("2027-01-01"));
  CHECK(next_month(day("2026-02-01")) == day("2026-03-01"));
  CHECK(next_month(day("2026-01-31")) == day("2026-02-01"));
}
