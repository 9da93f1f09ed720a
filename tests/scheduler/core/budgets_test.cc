// Tests of budgets, prices and quotas by time of day in the core.
#include "tests/scheduler/core/pool.h"
#include "tests/support/catch.h"
#include "tests/support/has.h"

using namespace gpupool;
using namespace gpupool::scheduler;
using gpupool::testing::has;

namespace {

constexpr Time kSecond = 1000, kDay = 24 * kHour;

Prices price_of(double gpu_hour) {
  Prices prices;
  prices.currency = "EUR";
  prices.gpu_hour = gpu_hour;
  return prices;
}

// A pool of one node with two GPUs; tenant "a" has these budgets. The time is the begin of a day.
struct BudgetPool : TestPool {
  explicit BudgetPool(std::vector<Budget> budgets) {
    now = 20'786 * kDay;  // 2026-11-29, a Sunday
    tenants = {{"a", {}, {}, std::move(budgets)}, {"b", {}}};
    prices = price_of(3600);  // one for each second of a GPU
    again();
  }
  // The scheduler crashes, and a new one begins with the store.
  void again() {
    start();
    node = register_node(1, 1, 2);
  }
  // Lets time pass in which the node reports a session of each lease that is not ending.
  void run(Time time) {
    for (; time > 0; time -= kSecond) {
      pass(kSecond);
      std::vector<std::pair<LeaseId, uint32_t>> uses;
      for (const auto& [stream, id] : held) {
        core->resume(stream, "a", id, now);
        const auto state = core->view_lease(id);
        if (state) uses.emplace_back(id, state->ending() && state->end_at_ms() <= now ? 0 : 1);
      }
      report(node, uses);
    }
  }
  Stream hold(const std::string& tenant = "a") {
    const Stream stream = request(ask(1), tenant);
    if (const Grant* const granted = grant(stream)) held.emplace_back(stream, granted->lease);
    return stream;
  }
  pool::BudgetState budget() const {
    pool::PoolSnapshot seen;
    core->view_tenants(*seen.mutable_tenants(), now);
    return seen.tenants(0).budgets(0);
  }

  Stream node = 0;
  std::vector<std::pair<Stream, LeaseId>> held;
};

}  // namespace

TEST_CASE("prices are per model, with a default") {
  Prices prices;
  prices.gpu_hour = 1;
  prices.gpu_hour_of_model["H200"] = 4;
  prices.gib_hour = 0.5;
  pool::UsageAmounts amounts;
  amounts.set_leased_milli_ms(500 * uint64_t{3'600'000});
  amounts.set_leased_memory_kib_ms(uint64_t{2} * (1 << 20) * 3'600'000);
  CHECK(prices.cost("A100", amounts) == Approx(0.5 + 1));
  CHECK(prices.cost("H200", amounts) == Approx(2 + 1));
}

TEST_CASE("periods of budgets begin at midnight, on Mondays and on the first") {
  const int64_t sunday = 20'786;
  CHECK(period_begin(BudgetPeriod::day, sunday) == sunday);
  CHECK(period_end(BudgetPeriod::day, sunday) == sunday + 1);
  CHECK(period_begin(BudgetPeriod::week, sunday) == sunday - 6);
  CHECK(period_end(BudgetPeriod::week, sunday) == sunday + 1);
  CHECK(period_begin(BudgetPeriod::week, sunday + 1) == sunday + 1);
  CHECK(period_begin(BudgetPeriod::month, sunday) == sunday - 28);
  CHECK(period_end(BudgetPeriod::month, sunday) == sunday + 2);
}

TEST_CASE("a budget that only warns says so once, also after a crash") {
  BudgetPool pool({{.amount = 100, .period = BudgetPeriod::day, .action = BudgetAction::warn}});
  pool.hold();
  pool.run(62 * kSecond);
  CHECK(pool.count("budget_exceeded") == 0);
  CHECK(pool.budget().spent() == Approx(61).margin(61));
  pool.run(60 * kSecond);
  CHECK(pool.count("budget_exceeded") == 1);
  CHECK(pool.grant(pool.hold("b")));
  pool.run(60 * kSecond);
  pool.again();
  pool.run(60 * kSecond);
  CHECK(pool.count("budget_exceeded") == 1);
  CHECK(pool.budget().spent() > 200);
}

TEST_CASE("an exceeded budget makes new requests wait until the next period") {
  BudgetPool pool({{.amount = 100, .period = BudgetPeriod::day, .action = BudgetAction::queue}});
  pool.hold();
  pool.run(121 * kSecond);
  REQUIRE(pool.count("budget_exceeded") == 1);
  const Stream waits = pool.request(ask(1));
  CHECK(!pool.grant(waits));
  pool.run(2 * kSecond);
  const QueuePlace* const place = pool.last_message<QueuePlace>(waits);
  REQUIRE(place);
  INFO(place->why);
  CHECK(has(place->why, "the budget of tenant 'a' is exceeded"));
  CHECK(has(place->why, "100.00 EUR per day (queue)"));
  CHECK(has(place->why, "begins on 2026-11-30"));
  CHECK(!pool.last_message<pool::Ended>(pool.held[0].first));  // what runs goes on
  const Stream other = pool.request(ask(1), "b");
  CHECK(pool.grant(other));
  finish(pool, other, pool.node);
  SECTION("also at a new leader") {
    pool.again();
    CHECK(!pool.grant(pool.request(ask(1))));
  }
  SECTION("the next day") {
    const Time midnight = (pool.now / kDay + 1) * kDay;
    pool.now = midnight - 5 * kSecond;
    pool.report(pool.node, {{pool.held[0].second, 1}});
    pool.run(40 * kSecond);
    CHECK(pool.grant(waits));
    CHECK(pool.budget().spent() < 100);
  }
}

TEST_CASE("periods of budgets and quotas by time of day follow a clock that is set") {
  BudgetPool pool({{.amount = 100, .period = BudgetPeriod::day, .action = BudgetAction::queue}});
  Time asked = 0;
  pool.tenants[1].windows = {{[&](Time now) {
                                asked = now;
                                return false;
                              },
                              {}}};
  pool.core->configure(pool.tenants, pool.prices, pool.now);
  pool.hold();
  pool.run(121 * kSecond);
  const Stream waits = pool.request(ask(1));
  REQUIRE(!pool.grant(waits));
  pool.step_clock(kDay);
  pool.run(2 * kSecond);
  CHECK(pool.grant(waits));
  CHECK(pool.budget().spent() < 100);
  CHECK(pool.budget().ends_ms() == 20'788 * kDay);
  CHECK(asked == pool.now + kDay);
}

TEST_CASE("a budget that stops ends leases with the notice of other evictions") {
  BudgetPool pool({{.amount = 100, .period = BudgetPeriod::month, .action = BudgetAction::stop}});
  const Stream holder = pool.hold();
  pool.run(121 * kSecond);
  const auto* const notice = pool.last_message<pool::Ended>(holder);
  REQUIRE(notice);
  CHECK(notice->why() == pool::Ended::EVICTED);
  CHECK(has(notice->reason(), "the budget of tenant 'a' is exceeded"));
  CHECK(notice->at_ms() > pool.now);
  pool.run(60 * kSecond);
  CHECK(!pool.core->view_lease(pool.held[0].second));
  CHECK(!pool.grant(pool.request(ask(1))));
}

TEST_CASE("a raised budget lets requests go on") {
  BudgetPool pool(
      {{.amount = 100, .in_gpu_hours = false, .period = BudgetPeriod::month, .action = BudgetAction::queue}});
  pool.hold();
  pool.run(121 * kSecond);
  const Stream waits = pool.request(ask(1));
  REQUIRE(!pool.grant(waits));
  pool.tenants[0].budgets[0].amount = 1000;
  pool.core->configure(pool.tenants, pool.prices, pool.now);
  pool.settle();
  CHECK(pool.grant(waits));
}

TEST_CASE("new budgets and new prices apply together") {
  BudgetPool pool({{.amount = 200, .period = BudgetPeriod::month, .action = BudgetAction::stop}});
  const Stream holder = pool.hold();
  pool.run(121 * kSecond);
  // The same amount in another currency.
  pool.prices = price_of(360);
  pool.tenants[0].budgets[0].amount = 20;
  pool.core->configure(pool.tenants, pool.prices, pool.now);
  pool.settle();
  CHECK(!pool.last_message<pool::Ended>(holder));
  CHECK(pool.count("budget_exceeded") == 0);
  CHECK(pool.budget().spent() == Approx(12).margin(1));
  pool.tenants[0].budgets[0].amount = 10;
  pool.core->configure(pool.tenants, pool.prices, pool.now);
  pool.settle();
  CHECK(pool.last_message<pool::Ended>(holder));
}

TEST_CASE("budgets in GPU hours need no prices") {
  BudgetPool pool(
      {{.amount = 0.02, .in_gpu_hours = true, .period = BudgetPeriod::week, .action = BudgetAction::warn}});
  pool.core->configure(pool.tenants, {}, pool.now);
  pool.hold();
  pool.run(121 * kSecond);
  CHECK(pool.count("budget_exceeded") == 1);
  CHECK(pool.budget().unit() == "GPU hours");
}

TEST_CASE("a quota by time of day applies within its window, and an operator's quota overrides it") {
  TestPool pool;
  bool night = false;
  pool::TenantQuota at_night;
  at_night.set_compute_milli(2000);
  pool.tenants[0].quota.set_compute_milli(1000);
  pool.tenants[0].windows = {{[&](Time) { return night; }, at_night}};
  pool.core->configure(pool.tenants, pool.prices, pool.now);
  const Stream node = pool.register_node(1, 1, 2);
  REQUIRE(pool.grant(pool.request(ask(1))));
  const Stream second = pool.request(ask(1));
  CHECK(!pool.grant(second));
  night = true;
  pool.pass(kSecond);
  REQUIRE(pool.grant(second));
  night = false;
  pool.pass(kSecond);
  CHECK(!pool.last_message<pool::Ended>(second));  // what was granted goes on
  finish(pool, second, node);
  CHECK(!pool.grant(pool.request(ask(1))));
  pool::TenantQuota set;
  set.set_compute_milli(1500);
  REQUIRE(pool.core->set_quota("a", set, pool.now));
  night = true;
  pool.pass(kSecond);
  CHECK(pool.core->tenants().at("a").quota.compute_milli() == 1500);
  pool.start();  // a new leader in the window
  CHECK(pool.core->tenants().at("a").quota.compute_milli() == 1500);
  REQUIRE(pool.core->clear_quota("a", pool.now));
  CHECK(pool.core->tenants().at("a").quota.compute_milli() == 2000);
}
