// Tests of the output of `pool-admin usage`.
#include "common/text/dates.h"
#include "scheduler/admin/pool/usage.h"
#include "tests/support/catch.h"
#include "tests/support/has.h"

using namespace gpupool;
using namespace gpupool::admin;
using gpupool::testing::has;

namespace {

pool::GetUsageReply some_usage() {
  pool::GetUsageReply usage;
  usage.set_currency("EUR");
  usage.set_from_ms(*parse_time("2026-11-01"));
  usage.set_to_ms(*parse_time("2026-12-01"));
  for (const char* const day : {"2026-11-28", "2026-11-29"}) {
    for (const char* const tenant : {"research", "web"}) {
      pool::UsageGroup& group = *usage.add_groups();
      group.add_keys(day);
      group.add_keys(tenant);
      group.set_cost(3.5);
      pool::UsageAmounts& amounts = *group.mutable_amounts();
      amounts.set_leased_milli_ms(1500 * uint64_t{3'600'000});
      amounts.set_leased_memory_kib_ms(uint64_t{2} * (1 << 20) * 3'600'000);
      amounts.set_gpu_nanoseconds(1'800'000'000'000);
      amounts.set_energy_millijoules(3'600'000'000);
      amounts.set_bytes_to_client(123);
    }
  }
  return usage;
}

const std::vector<std::string> kBy{"day", "tenant"};

}  // namespace

TEST_CASE("usage is a table in hours and GiB hours") {
  const std::string text = usage_text(some_usage(), kBy, 0);
  INFO(text);
  CHECK(has(text, "usage from 2026-11-01T00:00:00Z to 2026-12-01T00:00:00Z\n"));
  CHECK(has(text, "GPU HOURS"));
  CHECK(has(text, "COST EUR"));
  for (const char* const cell : {"2026-11-28", "research", "1.50", "0.50", "2.00", "1.00", "3.50"})
    CHECK(has(text, cell));
  pool::GetUsageReply none;
  CHECK(has(usage_text(none, kBy, 80), "no usage from"));
}

TEST_CASE("usage is CSV and JSON with exact values") {
  const std::string csv = usage_csv(some_usage(), kBy);
  INFO(csv);
  CHECK(has(csv,
            "day,tenant,leased_gpu_seconds,leased_memory_byte_seconds,gpu_seconds,used_memory_byte_seconds,"
            "bytes_from_client,bytes_to_client,energy_joules,cost,currency\r\n"));
  CHECK(has(csv, "2026-11-28,research,5400,7730941132800,1800,0,0,123,3600000,3.500000,EUR\r\n"));
  const Json json = usage_json(some_usage(), kBy);
  CHECK(json["groups"][3]["tenant"] == "web");
  CHECK(json["groups"][3]["leased_gpu_seconds"] == 5400.0);
  CHECK(json["groups"][3]["leased_memory_byte_seconds"] == 7730941132800.0);
  CHECK(json["groups"][3]["cost"] == 3.5);
}

TEST_CASE("CSV fields are quoted, and no spreadsheet computes them") {
  CHECK(csv_field("plain") == "plain");
  CHECK(csv_field("a,b") == "\"a,b\"");
  CHECK(csv_field("a \"b\"") == "\"a \"\"b\"\"\"");
  for (const char* const text : {"=1+1", "+1", "-1", "@SUM(A1)"})
    CHECK(csv_field(text) == "'" + std::string(text));
  CHECK(csv_field("\t=1") == "?=1");
  CHECK(csv_field("a\r\nb") == "a??b");
  CHECK(csv_field("\x1b[2J") == "?[2J");
}

TEST_CASE("usage is a list of OpenCost's responses, one for each day") {
  const Json list = opencost_json(some_usage(), kBy);
  REQUIRE(list.size() == 2);
  CHECK(list[1]["start"] == "2026-11-29T00:00:00Z");
  CHECK(list[1]["end"] == "2026-11-30T00:00:00Z");
  REQUIRE(list[1]["costs"].size() == 2);
  const Json& cost = list[1]["costs"][1];
  CHECK(cost["account_name"] == "web");
  CHECK(cost["id"] == "gpupool/2026-11-29/web");
  CHECK(cost["usage_quantity"] == 1.5);
  CHECK(cost["list_unit_price"].get<double>() == Approx(3.5 / 1.5));
  CHECK(cost["labels"]["tenant"] == "web");
}

TEST_CASE("the time asked for is this month unless it is given") {
  const int64_t now = *parse_time("2026-11-29T12:00:00Z");
  const auto request = usage_request({}, now);
  REQUIRE(request);
  CHECK(request->from_ms() == *parse_time("2026-11-01"));
  CHECK(request->to_ms() > now);
  UsageOptions options;
  options.from = "2026-11-29T08:00:00+01:00";
  options.to = "2026-11-30";
  options.by = {"gpu-model"};
  options.opencost = true;
  const auto other = usage_request(options, now);
  REQUIRE(other);
  CHECK(other->from_ms() == *parse_time("2026-11-29T07:00:00Z"));
  CHECK(other->by(0) == "day");
  CHECK(other->by(1) == "model");
  options.to = "2026-11-29";
  CHECK(!usage_request(options, now));
}
