// Tests of accounting in the core: what leases hold, what nodes report, and that neither is lost or counted
// twice when the scheduler crashes.
#include "scheduler/core/records.pb.h"
#include "tests/scheduler/core/moving_pool.h"
#include "tests/scheduler/core/suspending_pool.h"
#include "tests/scheduler/core/usage_pool.h"
#include "tests/support/has.h"

using namespace gpupool;
using namespace gpupool::scheduler;
using gpupool::testing::has;

namespace {

// Lets time pass in which the node reports a session of the lease.
void run(TestPool& pool, Stream node, const LeaseId& lease, Time time) {
  for (; time > 0; time -= kSecondMs) {
    pool.pass(kSecondMs);
    pool.report(node, {{lease, 1}});
  }
}

}  // namespace

TEST_CASE("a lease is charged for its share from the grant until its node has confirmed the end") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 1);
  const Stream holder = pool.request(ask(1, 250, 4 * kGiB));
  const LeaseId id = pool.grant(holder)->lease;
  pool.pass(10 * kSecondMs);
  pool.core->release(holder, pool.now);
  pool.settle();
  pool.pass(2 * kSecondMs);
  pool.report(node, {{id, 0}});
  pool.pass(100 * kSecondMs);
  const auto used = used_by(pool);
  CHECK(used.leased_milli_ms() == 250 * 12 * kSecondMs);
  CHECK(used.leased_memory_kib_ms() == 4 * kGiB / 1024 * 12 * kSecondMs);
  CHECK(used_by(pool, "b").leased_milli_ms() == 0);
}

TEST_CASE("the row of an hour is written when the hour or the lease is over") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 1);
  pool.now = 10 * kHour - 5 * kSecondMs;
  pool.report(node);
  pool::Request request = ask(1);
  request.set_user("ada");
  request.add_labels("job=7");
  const Stream holder = pool.request(request);
  const LeaseId id = pool.grant(holder)->lease;
  run(pool, node, id, 4 * kSecondMs);
  CHECK(rows(pool) == 0);
  run(pool, node, id, 70 * kSecondMs);  // the usage is stored once a minute
  REQUIRE(rows(pool) == 1);
  pool::UsageRow row;
  REQUIRE(row.ParseFromString(pool.store.at(usage_row_key(9, id))));
  CHECK(row.user() == "ada");
  CHECK(row.labels(0) == "job=7");
  REQUIRE(row.parts_size() == 1);
  CHECK(row.parts(0).node() == "n1");
  CHECK(row.parts(0).model() == "A100");
  CHECK(row.parts(0).amounts().leased_milli_ms() == 1000 * 5 * kSecondMs);
  CHECK(used_by(pool).leased_milli_ms() == 1000 * 74 * kSecondMs);
}

TEST_CASE("a crash of the scheduler neither loses nor repeats what a lease holds") {
  TestPool pool;
  Stream node = pool.register_node(1, 1, 1);
  const Stream holder = pool.request(ask(1, 500));
  const LeaseId id = pool.grant(holder)->lease;
  SECTION("before the first interval") {
    pool.now += 30 * kSecondMs;
  }
  SECTION("at once after a stored interval") {
    run(pool, node, id, 61 * kSecondMs);
  }
  SECTION("in another hour") {
    pool.now += 3 * kHour + 1;
  }
  const Time granted = 1'000'000;
  for (int crashes = 0; crashes < 3; ++crashes) {
    node = crash(pool);
    pool.report(node, {{id, 1}});
    pool.now += 7 * kSecondMs;
  }
  CHECK(used_by(pool).leased_milli_ms() == 500u * static_cast<uint64_t>(pool.now - granted));
  CHECK(used_by(pool).leased_milli_ms() == 500u * static_cast<uint64_t>(pool.now - granted));
}

TEST_CASE("a leader whose clock is behind the former leader's charges nothing twice") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 1);
  run(pool, node, pool.grant(pool.request(ask(1)))->lease, 61 * kSecondMs);
  const auto before = used_by(pool).leased_milli_ms();
  pool.now -= 20 * kSecondMs;
  crash(pool);
  CHECK(used_by(pool).leased_milli_ms() == before);
  pool.now += 20 * kSecondMs;
  CHECK(used_by(pool).leased_milli_ms() == before);
  pool.now += 5 * kSecondMs;
  CHECK(used_by(pool).leased_milli_ms() == before + 1000 * 5 * kSecondMs);
}

TEST_CASE("a scheduler's clock that is years ahead is noted, and charges at most 31 days") {
  TestPool pool;
  pool.register_node(1, 1, 1);
  pool.request(ask(1));
  pool.now += 5 * 365 * 24 * kHour;
  crash(pool);
  CHECK(used_by(pool).leased_milli_ms() == uint64_t{1000} * 31 * 24 * kHour);
  CHECK(pool.count("usage_cut") == 1);
}

TEST_CASE("a clock that is set charges nothing for the step, and later usage is at the new time") {
  const Time step = GENERATE(2 * kHour, -2 * kHour, 5 * 365 * 24 * kHour, -1'500);
  INFO("step " << step);
  TestPool pool;
  pool.now = pool.calendar = 100'000 * kHour;  // the core's clock and the wall clock differ
  pool.start();
  const Stream node = pool.register_node(1, 1, 1);
  const LeaseId id = pool.grant(pool.request(ask(1)))->lease;
  run(pool, node, id, 10 * kSecondMs);
  pool.step_clock(step);
  CHECK(pool.count("clock_stepped") == 1);
  run(pool, node, id, 10 * kSecondMs);
  CHECK(used_by(pool).leased_milli_ms() == 1000 * 20 * kSecondMs);
  int64_t hour = 0;
  pool.core->view_usage(pool.now,
                        [&](const std::string&, int64_t its, const pool::UsageRow&) { hour = its; });
  const int64_t wall = (pool.now + pool.calendar) / kHour;
  CHECK(hour == (step > 0 ? wall : std::max(wall, (pool.now + pool.calendar - step) / kHour)));
  crash(pool);
  CHECK(used_by(pool).leased_milli_ms() == 1000 * 20 * kSecondMs);
  CHECK(pool.count("usage_cut") == 0);
}

TEST_CASE("a stored lease whose usage has impossible times is rejected") {
  TestPool pool;
  pool.register_node(1, 1, 1);
  const LeaseId id = pool.grant(pool.request(ask(1)))->lease;
  LeaseRecord record;
  REQUIRE(record.ParseFromString(pool.store.at(lease_key(id))));
  const auto restored = [&](int64_t until, int64_t hour) {
    record.mutable_usage()->set_until_ms(until);
    record.mutable_usage()->set_hour(hour);
    pool.store[lease_key(id)] = record.SerializeAsString();
    try {
      pool.start();
      used_by(pool);
      return std::string();
    } catch (const std::runtime_error& error) {
      return std::string(error.what());
    }
  };
  CHECK(restored(0, 0).empty());
  CHECK(restored(1'000, 5).empty());
  for (const auto& [until, hour] : {std::pair<int64_t, int64_t>{-1, 0},
                                    {INT64_MIN, 0},
                                    {INT64_MAX, 0},
                                    {1'000, -1},
                                    {1'000, INT64_MIN},
                                    {1'000, INT64_MAX}})
    CHECK(has(restored(until, hour), "its usage is invalid"));
}

TEST_CASE("repeated counters add nothing") {
  TestPool pool;
  Stream node = pool.register_node(1, 1, 1);
  const LeaseId id = pool.grant(pool.request(ask(1)))->lease;
  Counters counters{.lease = id, .nanoseconds = 5'000, .memory = 70, .bytes = 9};
  report_counters(pool, node, counters);
  report_counters(pool, node, counters);
  CHECK(used_by(pool).gpu_nanoseconds() == 5'000);
  node = crash(pool);
  report_counters(pool, node, counters);
  counters.nanoseconds = 8'000;
  report_counters(pool, node, counters);
  node = crash(pool);  // before the last report was stored
  CHECK(used_by(pool).gpu_nanoseconds() == 5'000);
  report_counters(pool, node, counters);
  const auto used = used_by(pool);
  CHECK(used.gpu_nanoseconds() == 8'000);
  CHECK(used.used_memory_kib_ms() == 70);
  CHECK(used.bytes_from_client() == 9);
}

TEST_CASE("bytes count also without GPU time") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 1);
  const LeaseId id = pool.grant(pool.request(ask(1)))->lease;
  pool::NodeReport told;
  told.set_ready(true);
  told.set_now_ms(pool.now);
  pool::LeaseCounters& counters = *told.add_counters();
  counters.set_lease(id);
  counters.set_record(1);
  counters.set_bytes_to_client(77);
  pool.core->report(node, told, pool.now);
  CHECK(used_by(pool).bytes_to_client() == 77);
  pool.core->report(node, told, pool.now);
  CHECK(used_by(pool).bytes_to_client() == 77);
}

TEST_CASE("complete counters are confirmed, and are stored with the lease before") {
  TestPool pool;
  Stream node = pool.register_node(1, 1, 1);
  const LeaseId id = pool.grant(pool.request(ask(1)))->lease;
  Counters counters{.lease = id, .revision = 2, .nanoseconds = 5'000, .complete = true};
  report_counters(pool, node, counters);
  REQUIRE(pool.orders(node).recorded_size() == 1);
  CHECK(pool.orders(node).recorded(0).lease() == id);
  CHECK(pool.orders(node).recorded(0).revision() == 2);
  node = crash(pool);
  CHECK(used_by(pool).gpu_nanoseconds() == 5'000);
  // The confirmation was lost: the node repeats the counters.
  report_counters(pool, node, counters);
  CHECK(used_by(pool).gpu_nanoseconds() == 5'000);
  CHECK(pool.orders(node).recorded_size() == 1);
  // It has forgotten them, and a session of the lease begins again.
  counters = {.lease = id, .record = 2, .nanoseconds = 300};
  report_counters(pool, node, counters);
  CHECK(pool.orders(node).recorded_size() == 0);
  CHECK(used_by(pool).gpu_nanoseconds() == 5'300);
}

TEST_CASE("the last counters of a lease come with its end, and once more changes nothing") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 1);
  const Stream holder = pool.request(ask(1));
  const LeaseId id = pool.grant(holder)->lease;
  Counters counters{.lease = id, .nanoseconds = 5'000};
  report_counters(pool, node, counters);
  pool.core->release(holder, pool.now);
  pool.settle();
  counters = {.lease = id, .revision = 2, .nanoseconds = 6'000, .complete = true};
  report_counters(pool, node, counters, 0);
  CHECK(!pool.core->view_lease(id));
  CHECK(pool.orders(node).recorded_size() == 1);
  CHECK(rows(pool) == 1);
  report_counters(pool, node, counters, 0);
  CHECK(pool.orders(node).recorded_size() == 1);  // or it would be repeated for ever
  CHECK(used_by(pool).gpu_nanoseconds() == 6'000);
}

TEST_CASE("a node cannot charge leases of other nodes, unknown GPUs, or less than before") {
  TestPool pool;
  const Stream first = pool.register_node(1, 1, 1);
  const Stream second = pool.register_node(2, 2, 1);
  const LeaseId id = pool.grant(pool.request(ask(1)))->lease;
  REQUIRE(pool.where(*pool.grant(2 + 1)) == "n1:0");
  report_counters(pool, second, {.lease = id, .nanoseconds = 1'000'000}, 1, 2);
  CHECK(used_by(pool).gpu_nanoseconds() == 0);
  report_counters(pool, first, {.lease = id, .nanoseconds = 1'000'000}, 1,
                  7);  // the UUID of another node's GPU
  CHECK(used_by(pool).gpu_nanoseconds() == 0);
  report_counters(pool, first, {.lease = id, .nanoseconds = 500});
  report_counters(pool, first, {.lease = id, .nanoseconds = 100});
  report_counters(pool, first, {.lease = id, .nanoseconds = 600});
  CHECK(used_by(pool).gpu_nanoseconds() == 600);
  report_counters(pool, first, {.lease = "short", .nanoseconds = 600});
  CHECK(used_by(pool).gpu_nanoseconds() == 600);
}

TEST_CASE("a lease that moves is charged once") {
  MovingPool pool({1, 1});
  pool.pass_with({{1, 1}, {2, 0}}, 10 * kSecondMs);
  REQUIRE(pool.move("n2"));
  pool.pass_with({{1, 1}, {2, 1}}, 5 * kSecondMs);
  report_counters(pool, pool.nodes.at(1), {.lease = pool.lease, .nanoseconds = 40, .complete = true}, 0);
  pool.pass_with({{1, 0}, {2, 1}}, 20 * kSecondMs);
  report_counters(pool, pool.nodes.at(2), {.lease = pool.lease, .nanoseconds = 2}, 1, 2);
  const auto used = used_by(pool);
  CHECK(used.leased_milli_ms() == 1000 * 35 * kSecondMs);
  CHECK(used.gpu_nanoseconds() == 42);
  pool::UsageRow row;
  pool.core->view_usage(pool.now,
                        [&](const std::string&, int64_t, const pool::UsageRow& open) { row = open; });
  REQUIRE(row.parts_size() == 2);
  CHECK(row.parts(0).amounts().leased_milli_ms() == 1000 * 15 * kSecondMs);
  CHECK(row.parts(1).node() == "n2");
}

TEST_CASE(
    "a lease is not charged while its node is lost, but for its other nodes, and again when it is back") {
  TestPool pool;
  const Stream one = pool.register_node(1, 1, 1);
  const Stream two = pool.register_node(2, 2, 1);
  const Stream holder = pool.request(ask(2));
  const LeaseId id = pool.grant(holder)->lease;
  const Time granted = pool.now;
  const auto pass = [&](Time time, bool both) {
    for (; time > 0; time -= kSecondMs) {
      pool.pass(kSecondMs);
      pool.report(one, {{id, 1}});
      if (both) pool.report(two, {{id, 1}});
    }
  };
  pass(10 * kSecondMs, true);
  for (int i = 0; i < 60 && pool.count("node_lost") == 0; ++i) pass(kSecondMs, false);
  const auto used = [&] { return used_by(pool).leased_milli_ms() / 1000; };
  // Until the node was lost, both parts are charged.
  const auto at_loss = 2 * static_cast<uint64_t>(pool.now - granted);
  REQUIRE(pool.last_message<pool::Ended>(holder)->why() == pool::Ended::NODE_LOST);
  CHECK(used() == at_loss);
  pass(10 * kSecondMs, false);
  CHECK(used() == at_loss + 10 * kSecondMs);
  pass(10 * kSecondMs, true);  // it came back at the end of the first of these seconds
  CHECK(used() == at_loss + 10 * kSecondMs + 19 * kSecondMs);
  pool.report(one, {{id, 0}});
  pass(kSecondMs, true);
  CHECK(used() == at_loss + 10 * kSecondMs + 20 * kSecondMs);
  pool.report(two, {{id, 0}});
  CHECK(!pool.core->view_lease(id));
  pool.pass(100 * kSecondMs);
  CHECK(used() == at_loss + 10 * kSecondMs + 20 * kSecondMs);
}

TEST_CASE("a suspended lease is not charged") {
  SuspendingPool pool({1});
  const Stream holder = pool.ask_for(1, lease::NORMAL);
  const LeaseId id = pool.grant(holder)->lease;
  pool.now += 10 * kSecondMs;
  REQUIRE(pool.core->suspend_lease(lease::hexadecimal(id), pool.now));
  pool.settle();
  pool.report_on(1, Answer::SUSPENDED);
  REQUIRE(pool.core->view_lease(id)->suspension().state() == pool::LeaseStandstill::SUSPENDED);
  pool.now += 1000 * kSecondMs;
  CHECK(used_by(pool).leased_milli_ms() == 1000 * 10 * kSecondMs);
}

TEST_CASE("the usage of many leases is stored in several transactions, and soon") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 16);
  std::vector<std::pair<LeaseId, uint32_t>> uses;
  for (int i = 0; i < 160; ++i) {
    pool::Request request = ask(1, 100);
    const Stream stream = pool.request(request);
    REQUIRE(pool.grant(stream));
    uses.emplace_back(pool.grant(stream)->lease, 1);
  }
  std::map<std::string, int> times;
  for (int second = 0; second < 90; ++second) {
    pool.now += kSecondMs;
    pool.core->tick(pool.now);
    pool.core->schedule(pool.now);
    const Effects effects = pool.core->take(pool.now);
    CHECK(effects.writes.size() < 40);
    for (const Write& write : effects.writes) times[write.key] += write.key.starts_with("lease/");
    pool.write(effects);
    pool.report(node, uses);
  }
  for (const auto& [id, sessions] : uses) CHECK(times[lease_key(id)] > 0);
}
