// Tests of prices, budgets and quotas by time of day in the scheduler's configuration, and of sums of usage.
#include "scheduler/service/billing.h"

#include "common/text/dates.h"
#include "scheduler/service/callers.h"
#include "scheduler/service/usage_sum.h"
#include "tests/support/catch.h"
#include "tests/support/has.h"

using namespace gpupool;
using namespace gpupool::scheduler;
using gpupool::testing::has;

namespace {

Result<Callers> read(const std::string& text) {
  return Callers::read(toml::parse(text));
}
std::string refusal(const std::string& text) {
  const auto callers = read(text);
  return callers ? "" : callers.error().message;
}

// The configuration of a tenant with this line.
std::string tenant(const std::string& line) {
  return "[prices]\ncurrency = \"EUR\"\n[[tenant]]\nname = \"a\"\n" + line + "\n";
}

bool applies(const std::string& window, const std::string& time) {
  const auto callers = read(tenant("quota_at = [{ quota = { gpus = 8 }, " + window + " }]"));
  INFO(window << " at " << time);
  REQUIRE(callers);
  REQUIRE(callers->tenants().at(0).windows.size() == 1);
  CHECK(callers->tenants().at(0).windows[0].quota.compute_milli() == 8000);
  return callers->tenants().at(0).windows[0].applies(*parse_time(time));
}

pool::UsageRow row(const std::string& tenant, const std::vector<std::string>& labels,
                   const std::string& model, uint64_t amount) {
  pool::UsageRow made;
  made.set_lease(std::string(16, 'l'));
  made.set_tenant(tenant);
  for (const std::string& label : labels) made.add_labels(label);
  pool::UsagePart& part = *made.add_parts();
  part.set_node("n1");
  part.set_model(model);
  part.mutable_amounts()->set_leased_milli_ms(amount);
  return made;
}

}  // namespace

TEST_CASE("prices are read, and wrong ones name their key") {
  const auto callers = read(
      "[prices]\ncurrency = \"EUR\"\ngpu_hour = 2\ngib_hour = 0.5\ngpu_hour_of_model = { \"NVIDIA H200\" = "
      "4.5 }\n");
  REQUIRE(callers);
  CHECK(callers->prices().currency == "EUR");
  CHECK(callers->prices().of_gpu_hour("NVIDIA H200") == 4.5);
  CHECK(callers->prices().of_gpu_hour("other") == 2);
  CHECK(read("")->prices().currency.empty());
  CHECK(has(refusal("[prices]\ngpu_hour = 2\n"), "prices.currency: missing"));
  CHECK(has(refusal("[prices]\ncurrency = \"EUR\"\ngpu_hour = -1\n"), "prices.gpu_hour: must be a number"));
  CHECK(has(refusal("[prices]\ncurrency = \"EUR\"\ngpu_hour = nan\n"), "prices.gpu_hour: must be a number"));
  CHECK(has(refusal("[prices]\ncurrency = \"a\\u001b[2J\"\n"), "prices.currency: must be a short name"));
  CHECK(has(refusal("[prices]\ncurrency = \"EUR\"\nhour = 1\n"), "prices.hour: unknown key"));
  CHECK(has(refusal("prices = 3\n"), "prices: must be a table"));
}

TEST_CASE("budgets are read, and wrong ones name their key") {
  const auto callers =
      read(tenant("budgets = [{ amount = 500, period = \"week\", action = \"stop\" }, { gpu_hours = 0.5 }]"));
  REQUIRE(callers);
  const auto& budgets = callers->tenants().at(0).budgets;
  REQUIRE(budgets.size() == 2);
  CHECK(budgets[0].text(callers->prices()) == "500.00 EUR per week (stop)");
  CHECK(budgets[1].text(callers->prices()) == "0.50 GPU hours per month (warn)");
  CHECK(has(refusal(tenant("budgets = [{ period = \"day\" }]")), "budgets: needs either amount"));
  CHECK(has(refusal(tenant("budgets = [{ amount = 1, gpu_hours = 1 }]")), "budgets: needs either amount"));
  CHECK(has(refusal(tenant("budgets = [{ amount = 0 }]")), "budgets: amount: must be more than 0"));
  CHECK(has(refusal(tenant("budgets = [{ amount = 1, period = \"year\" }]")),
            "period: must be one of day, week, month"));
  CHECK(has(refusal(tenant("budgets = [{ amount = 1 }, { amount = 2 }]")),
            "two budgets have the same period and action"));
  CHECK(has(refusal("[[tenant]]\nname = \"a\"\nbudgets = [{ amount = 1 }]\n"), "an amount needs [prices]"));
  CHECK(read("[[tenant]]\nname = \"a\"\nbudgets = [{ gpu_hours = 1 }]\n"));
}

TEST_CASE("windows apply by hour, day and time zone") {
  CHECK(applies("hours = \"08:00-18:00\"", "2026-11-29T08:00:00Z"));
  CHECK(!applies("hours = \"08:00-18:00\"", "2026-11-29T18:00:00Z"));
  CHECK(applies("hours = \"22:00-06:00\"", "2026-11-29T22:00:00Z"));
  CHECK(applies("hours = \"22:00-06:00\"", "2026-11-29T05:59:59Z"));
  CHECK(!applies("hours = \"22:00-06:00\"", "2026-11-29T06:00:00Z"));
  CHECK(applies("days = [\"sun\"]", "2026-11-29T00:00:00Z"));
  CHECK(!applies("days = [\"sun\"]", "2026-11-30T00:00:00Z"));
  // A window past midnight belongs to the day on which it begins.
  CHECK(applies("days = [\"sun\"], hours = \"22:00-06:00\"", "2026-11-30T05:00:00Z"));
  CHECK(!applies("days = [\"sun\"], hours = \"22:00-06:00\"", "2026-11-29T05:00:00Z"));
  CHECK(applies("hours = \"00:00-24:00\"", "2026-11-29T23:59:59Z"));
  // Berlin is an hour ahead in winter, two in summer.
  CHECK(applies("hours = \"08:00-09:00\", timezone = \"Europe/Berlin\"", "2026-11-29T07:30:00Z"));
  CHECK(applies("hours = \"08:00-09:00\", timezone = \"Europe/Berlin\"", "2026-07-29T06:30:00Z"));
  CHECK(!applies("hours = \"08:00-09:00\", timezone = \"Europe/Berlin\"", "2026-07-29T07:30:00Z"));
}

TEST_CASE("wrong windows name their key") {
  for (const char* const hours :
       {"", "8-18", "08:00", "08:00-08:00", "25:00-06:00", "08:60-09:00", "24:00-06:00", "a8:00-09:00"})
    CHECK(has(refusal(tenant("quota_at = [{ quota = {}, hours = \"" + std::string(hours) + "\" }]")),
              "quota_at: hours: must be two different times"));
  CHECK(has(refusal(tenant("quota_at = [{ quota = {}, days = [\"monday\"] }]")),
            "quota_at: days: must be days"));
  CHECK(has(refusal(tenant("quota_at = [{ quota = {}, days = [] }]")),
            "quota_at: days: must have at least one"));
  for (const char* const zone : {"", "Europe/Nowhere", "../../etc/passwd", "/etc/localtime"})
    CHECK(has(refusal(tenant("quota_at = [{ quota = {}, timezone = \"" + std::string(zone) + "\" }]")),
              "quota_at: timezone: must be a time zone"));
  CHECK(has(refusal(tenant("quota_at = [{ hours = \"08:00-09:00\" }]")), "quota_at: quota: missing"));
  CHECK(has(refusal(tenant("quota_at = [{ quota = { cpus = 1 } }]")),
            "quota_at: quota: quota.cpus: unknown key"));
  CHECK(has(refusal(tenant("quota_at = [{ quota = {}, zone = 1 }]")), "quota_at: zone: unknown key"));
}

TEST_CASE("rows are summed up by their dimensions, with their cost") {
  pool::GetUsageRequest request;
  for (const char* const name : {"tenant", "label:team", "job", "hour"}) request.add_by(name);
  Prices prices;
  prices.currency = "EUR";
  prices.gpu_hour_of_model["H200"] = 4;
  auto sum = UsageSum::make(request, prices);
  REQUIRE(sum);
  constexpr uint64_t kGpuHour = 1000 * uint64_t{3'600'000};
  REQUIRE(sum->add(0, false, row("a", {"team=x", "job=1"}, "H200", kGpuHour)));
  REQUIRE(sum->add(0, false, row("a", {"job=1", "team=x", "team=y"}, "A100", kGpuHour)));
  REQUIRE(sum->add(0, false, row("a", {"team"}, "H200", kGpuHour)));
  REQUIRE(sum->add(3'600'000, false, row("b", {"teams=x"}, "H200", kGpuHour)));
  const pool::GetUsageReply reply = sum->reply();
  REQUIRE(reply.groups_size() == 3);
  CHECK(std::vector<std::string>(reply.groups(1).keys().begin(), reply.groups(1).keys().end()) ==
        std::vector<std::string>{"a", "x", "1", "1970-01-01T00:00:00Z"});
  CHECK(reply.groups(1).amounts().leased_milli_ms() == 2 * kGpuHour);
  CHECK(reply.groups(1).cost() == Approx(4));
  CHECK(reply.groups(0).keys(1) == "true");
  CHECK(reply.groups(2).keys(1).empty());
}

TEST_CASE("a sum has a limit of groups, and amounts do not overflow") {
  pool::GetUsageRequest request;
  request.add_by("job");
  auto sum = UsageSum::make(request, {});
  Result<void> added;
  for (size_t i = 0; i <= UsageSum::kMostGroups && added; ++i)
    added = sum->add(0, false, row("a", {"job=" + std::to_string(i)}, "A100", UINT64_MAX));
  REQUIRE(!added);
  CHECK(added.error().code == ErrorCode::limit);
  auto of_all = UsageSum::make({}, {});
  REQUIRE(of_all->add(0, false, row("a", {}, "A100", UINT64_MAX)));
  REQUIRE(of_all->add(0, false, row("b", {}, "A100", UINT64_MAX)));
  CHECK(of_all->reply().groups(0).amounts().leased_milli_ms() == UINT64_MAX);
}

TEST_CASE("a day that is summed up has a limit of rows for each tenant, and nothing is lost") {
  UsageDay day;
  for (size_t i = 0; i < UsageDay::kMostRows + 50; ++i)
    day.add(row("a", {"job=" + std::to_string(i)}, "A100", 1));
  for (size_t i = 0; i < UsageDay::kMostRows; i += 100)
    day.add(row("a", {"job=" + std::to_string(i)}, "A100", 1));
  day.add(row("b", {"job=1"}, "A100", 1));
  const auto rows = day.rows();
  CHECK(rows.size() == UsageDay::kMostRows + 2);
  uint64_t sum = 0, rest = 0;
  for (const pool::UsageRow& one : rows) {
    sum += one.parts(0).amounts().leased_milli_ms();
    if (one.labels().empty()) rest += one.parts(0).amounts().leased_milli_ms();
  }
  CHECK(sum == UsageDay::kMostRows + 50 + UsageDay::kMostRows / 100 + 1);
  CHECK(rest == 50);
}
