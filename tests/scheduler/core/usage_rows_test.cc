// Tests of the rows of usage in the core: their keys, how many a tenant can have, and the view of those to
// come.
#include "tests/scheduler/core/usage_pool.h"

using namespace gpupool;
using namespace gpupool::scheduler;

TEST_CASE("usage rows have keys in the order of time") {
  const LeaseId id(16, '\x2a');
  CHECK(usage_row_key(0, id) == "usage/hour/1970-01-01/00/" + lease::hexadecimal(id));
  CHECK(usage_row_key(20'786 * 24 + 9, id).starts_with("usage/hour/2026-11-29/09/"));
}

TEST_CASE("a tenant with very many leases in an hour gets one row for the rest, and nothing is lost") {
  TestPool pool;
  pool.now = 20 * kHour;
  pool.start();
  Stream node = pool.register_node(1, 1, 1);
  constexpr int kLeases = 1'040;
  const auto lease_for = [&](Time time) {
    const Stream holder = pool.request(ask(1));
    const LeaseId id = pool.grant(holder)->lease;
    pool.now += time;
    pool.core->release(holder, pool.now);
    pool.settle();
    pool.report(node, {{id, 0}});
    pool.published = {};
  };
  for (int i = 0; i < kLeases; ++i) lease_for(kSecondMs);
  CHECK(rows(pool) == 1'000);
  CHECK(used_by(pool).leased_milli_ms() == uint64_t{1000} * kLeases * kSecondMs);
  node = crash(pool);
  CHECK(used_by(pool).leased_milli_ms() == uint64_t{1000} * kLeases * kSecondMs);
  pool.now = 21 * kHour;
  pool.report(node);
  lease_for(kSecondMs);  // the next hour has rows again
  CHECK(rows(pool) == 1'001);
  for (pool.now = 22 * kHour; pool.now <= 24 * kHour; pool.now += kHour / 2) {
    pool.report(node);
    pool.pass(1);
  }
  CHECK(rows(pool) == 1'002);
  CHECK(used_by(pool).leased_milli_ms() == uint64_t{1000} * (kLeases + 1) * kSecondMs);
  crash(pool);
  CHECK(used_by(pool).leased_milli_ms() == uint64_t{1000} * (kLeases + 1) * kSecondMs);
}

TEST_CASE("viewing usage counts up to now, in closed hours too, and stores nothing") {
  TestPool pool;
  pool.now = 20 * kHour;
  pool.start();
  const Stream node = pool.register_node(1, 1, 1);
  const LeaseId id = pool.grant(pool.request(ask(1)))->lease;
  report_counters(pool, node, {.lease = id, .nanoseconds = 500});
  const auto stored = pool.store;
  pool.now += 2 * kHour + kSecondMs;
  for (int times = 0; times < 2; ++times) {
    std::map<std::string, uint64_t> seen;
    pool.core->view_usage(pool.now, [&](const std::string& key, int64_t, const pool::UsageRow& row) {
      seen[key] = row.parts(0).amounts().leased_milli_ms();
    });
    CHECK(seen == std::map<std::string, uint64_t>{{usage_row_key(20, id), 1000 * kHour},
                                                  {usage_row_key(21, id), 1000 * kHour},
                                                  {usage_row_key(22, id), 1000 * kSecondMs}});
    CHECK(view_used_by(pool).gpu_nanoseconds() == 500);
  }
  CHECK(pool.core->take(pool.now).writes.empty());
  CHECK(pool.store == stored);
}

TEST_CASE("rows have short names of users and programs") {
  TestPool pool;
  pool.register_node(1, 1, 1);
  pool::Request request = ask(1);
  request.set_user(std::string(1'000, 'u'));
  request.set_program(std::string(1'000, 'p'));
  pool.request(request);
  pool.now += kSecondMs;
  used_by(pool);
  pool::UsageRow row;
  pool.core->view_usage(pool.now,
                        [&](const std::string&, int64_t, const pool::UsageRow& open) { row = open; });
  CHECK(row.user() == std::string(256, 'u'));
  CHECK(row.program() == std::string(256, 'p'));
}
