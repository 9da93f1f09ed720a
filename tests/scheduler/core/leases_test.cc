// Tests of leases in the core: grant, hold, renewal, release, eviction, restore.
#include "tests/scheduler/core/pool.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::scheduler;

TEST_CASE("a grant reaches client and node only after it is stored") {
  TestPool pool;
  pool.register_node(1, 1, 2);
  pool::Request request = ask(1, 500, 4 * kGiB);
  request.set_mode(lease::HARD);
  pool.core->request(77, "a", request, {}, pool.now);
  pool.core->schedule(pool.now);
  const Effects effects = pool.core->take(pool.now);
  REQUIRE(effects.writes.size() == 1);
  const Grant& grant = std::get<Grant>(effects.clients.at(0).message);
  CHECK(effects.writes[0].key == "lease/" + lease::hexadecimal(grant.lease));
  CHECK(effects.clients[0].stream == 77);
  CHECK(!effects.clients[0].last);
  CHECK(grant.hold_ms == 30'000);
  REQUIRE(grant.servers.size() == 1);
  CHECK(grant.servers[0].address == "tcp://10.0.0.1:9700");
  const lease::Lease& token = grant.servers[0].lease;
  CHECK(token.node() == "n1");
  CHECK(token.boot() == boot_id(1));
  CHECK(token.tenant() == "a");
  CHECK(token.id() == grant.lease);
  CHECK(token.serial() == 1);
  CHECK(token.issued_ms() == pool.now);
  CHECK(token.expires_ms() == pool.now + 600'000);
  CHECK(token.mode() == lease::HARD);
  CHECK(token.priority() == lease::NORMAL);
  REQUIRE(token.shares_size() == 1);
  CHECK(token.shares(0).gpu_uuid() == gpu_uuid(1, 0));
  CHECK(token.shares(0).compute_milli() == 500);
  CHECK(token.shares(0).memory_bytes() == 4 * kGiB);
}

TEST_CASE("memory defaults to the same share as compute and a whole GPU includes all of its memory") {
  TestPool pool;
  pool.register_node(1, 1, 2, 16 * kGiB);
  const auto memory_of = [&](const pool::Request& request) {
    return pool.grant(pool.request(request))->servers[0].lease.shares(0).memory_bytes();
  };
  CHECK(memory_of(ask(1, 250)) == 4 * kGiB);
  CHECK(memory_of(ask(1, 1000, kGiB)) == 16 * kGiB);
}

TEST_CASE("a lease outlives its client's disconnection by the hold time only") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 1);
  const Stream holder = pool.request(ask(1));
  const LeaseId id = pool.grant(holder)->lease;
  pool.core->client_disconnected(holder, pool.now);
  for (int i = 0; i < 29; ++i) pool.pass(1000), pool.report(node, {{id, 1}});
  pool.core->resume(900, "a", id, pool.now);
  pool.settle();
  REQUIRE(pool.grant(900));
  CHECK(pool.grant(900)->lease == id);
  CHECK(pool.grant(900)->servers[0].lease.serial() == 2);
  pool.core->client_disconnected(900, pool.now);
  for (int i = 0; i < 31; ++i) pool.pass(1000), pool.report(node, {{id, 1}});
  REQUIRE(pool.orders(node).end_size() == 1);
  CHECK(pool.orders(node).end(0).lease() == id);
  CHECK(pool.orders(node).end(0).grace_ms() == 0);
  // The share stays allocated until the node reports that no session is left.
  CHECK(pool.leased_milli() == 1000);
  const Stream next = pool.request(ask(1));
  CHECK(!pool.grant(next));
  pool.report(node, {{id, 0}});
  CHECK(pool.grant(next));
  CHECK(pool.orders(node).end_size() == 0);
  pool.core->resume(901, "a", id, pool.now);
  pool.settle();
  REQUIRE(pool.last_message<pool::Ended>(901));
  CHECK(pool.last_message<pool::Ended>(901)->why() == pool::Ended::EXPIRED);
}

TEST_CASE("repeating a request id returns the lease whose grant was lost") {
  TestPool pool;
  pool.register_node(1, 1, 2);
  pool::Request request = ask(1);
  request.set_id("sixteen bytes 01");
  const Stream first = pool.request(request);
  REQUIRE(pool.grant(first));
  const LeaseId id = pool.grant(first)->lease;
  pool.start();  // a crash: the grant is stored, but the client has lost its stream
  pool.register_node(1, 1, 2);
  const Stream again = pool.request(request);
  REQUIRE(pool.grant(again));
  CHECK(pool.grant(again)->lease == id);
  const Stream another = pool.request(request, "b");
  REQUIRE(pool.grant(another));
  CHECK(pool.grant(another)->lease != id);
  CHECK(pool.leased_milli() == 2000);
}

TEST_CASE("repeating a request id keeps the place in the queue") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 1);
  const Stream holder = pool.request(ask(1));
  REQUIRE(pool.grant(holder));
  pool::Request request = ask(1);
  request.set_id("sixteen bytes 01");
  const Stream first = pool.request(request);
  pool.pass(200);
  const Stream other = pool.request(ask(1));
  pool.pass(200);
  const Stream again = pool.request(request);
  REQUIRE(pool.last_message<Refusal>(first));
  CHECK(pool.last_message<Refusal>(first)->kind == Refusal::Kind::busy);
  finish(pool, holder, node);
  REQUIRE(pool.grant(again));
  CHECK(!pool.grant(other));
  finish(pool, again, node);
  CHECK(pool.grant(other));
}

TEST_CASE("another tenant cannot resume a lease, and a second stream replaces the first") {
  TestPool pool;
  pool.register_node(1, 1, 1);
  const Stream holder = pool.request(ask(1));
  const LeaseId id = pool.grant(holder)->lease;
  pool.core->resume(900, "b", id, pool.now);
  pool.settle();
  CHECK(!pool.grant(900));
  CHECK(pool.last_message<pool::Ended>(900));
  pool.core->resume(901, "a", id, pool.now);
  pool.settle();
  CHECK(pool.grant(901));
  CHECK(pool.last_message<Refusal>(holder));
  pool.core->client_disconnected(holder, pool.now);  // no effect: the stream has been replaced
  pool.core->release(901, pool.now);
  pool.settle();
  CHECK(pool.last_message<pool::Ended>(901)->why() == pool::Ended::RELEASED);
}

TEST_CASE("tokens are renewed at half of their time") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 1);
  const Stream holder = pool.request(ask(1));
  for (int i = 0; i < 299; ++i) pool.pass(1000), pool.report(node);
  CHECK(pool.grant(holder)->servers[0].lease.serial() == 1);
  pool.pass(1000);
  CHECK(pool.grant(holder)->servers[0].lease.serial() == 2);
  CHECK(pool.grant(holder)->expires == pool.now + 600'000);
}

TEST_CASE("releasing a lease ends it at once and the node's order is repeated until it is confirmed") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 1);
  const Stream holder = pool.request(ask(1));
  const LeaseId id = pool.grant(holder)->lease;
  pool.core->release(holder, pool.now);
  pool.settle();
  CHECK(pool.last_message<pool::Ended>(holder)->why() == pool::Ended::RELEASED);
  for (int i = 0; i < 3; ++i) {
    pool.published = {};
    pool.report(node, {{id, 1}});
    CHECK(pool.orders(node).end_size() == 1);
  }
  pool.report(node, {{id, 0}});
  CHECK(pool.leased_milli() == 0);
  CHECK(pool.store.size() == 1);  // the node's record
}

TEST_CASE("an evicted lease ends after its grace period or when it is released") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 1);
  const Stream holder = pool.request(ask(1));
  const LeaseId id = pool.grant(holder)->lease;
  REQUIRE(pool.core->evict(lease::hexadecimal(id).substr(0, 8), "maintenance", 5000, pool.now));
  pool.settle();
  CHECK(pool.last_message<pool::Ended>(holder)->why() == pool::Ended::EVICTED);
  CHECK(pool.last_message<pool::Ended>(holder)->at_ms() == pool.now + 5000);
  CHECK(pool.orders(node).end(0).grace_ms() == 5000);
  CHECK(pool.orders(node).end(0).reason() == "maintenance");
  pool.pass(2000);
  pool.report(node, {{id, 1}});
  CHECK(pool.orders(node).end(0).grace_ms() == 3000);
  SECTION("over") {
    pool.pass(3000);
    CHECK(pool.last_message<pool::Ended>(holder)->at_ms() == 0);
    pool.report(node, {{id, 1}});
    CHECK(pool.orders(node).end(0).grace_ms() == 0);
  }
  SECTION("given back") {
    pool.core->release(holder, pool.now);
    pool.settle();
    CHECK(pool.last_message<pool::Ended>(holder)->at_ms() == 0);
    CHECK(pool.orders(node).end(0).grace_ms() == 0);
  }
  SECTION("a shorter one") {
    REQUIRE(pool.core->evict(lease::hexadecimal(id), "", 1000, pool.now));
    pool.settle();
    CHECK(pool.last_message<pool::Ended>(holder)->at_ms() == pool.now + 1000);
  }
}

TEST_CASE("leases and their clients continue after a crash of the scheduler") {
  TestPool pool;
  pool.register_node(1, 1, 2);
  const Stream one = pool.request(ask(1, 300)), two = pool.request(ask(1, 800));
  const LeaseId first = pool.grant(one)->lease, second = pool.grant(two)->lease;
  pool.core->release(two, pool.now);
  pool.settle();
  pool.start();
  CHECK(pool.leased_milli() == 1100);
  pool.core->resume(900, "a", first, pool.now);
  pool.settle();
  CHECK(!pool.grant(900)->servers.empty());
  const Stream node = pool.register_node(1, 1, 2);
  REQUIRE(pool.orders(node).end_size() == 1);
  CHECK(pool.orders(node).end(0).lease() == second);
  pool.report(node, {{first, 1}, {second, 0}});
  CHECK(pool.leased_milli() == 300);
}

TEST_CASE("an inconsistent store is rejected") {
  TestPool pool;
  pool.register_node(1, 1, 1);
  pool.request(ask(1));
  const auto refused = [&](const std::map<std::string, std::string>& stored) {
    Core core([] { return LeaseId(16, 'x'); }, [](Nodes& nodes) { return std::make_unique<FirstFit>(nodes); },
              pool.now);
    return !core.restore({stored.begin(), stored.end()}, pool.now);
  };
  CHECK(!refused(pool.store));
  auto twice = pool.store;
  for (const auto& [key, value] : pool.store) {
    if (key.starts_with("lease/")) twice["lease/ff"] = value;
  }
  CHECK(refused(twice));
  auto without_node = pool.store;
  without_node.erase("node/n1");
  CHECK(refused(without_node));
  auto torn = pool.store;
  torn["policy"] = "\xff";
  CHECK(refused(torn));
}

TEST_CASE("the state of a lease tells of its sessions' broken connections until the node reports none") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 1);
  const LeaseId id = pool.grant(pool.request(ask(1)))->lease;
  pool::NodeReport report;
  report.set_ready(true);
  report.set_now_ms(pool.now);
  pool::LeaseUse& use = *report.add_leases();
  use.set_lease(id);
  use.set_sessions(2);
  use.set_serial(1);
  use.mutable_breaks()->set_waiting(1);
  use.mutable_breaks()->set_resumed(7);
  const auto breaks = [&] {
    pool.core->report(node, report, pool.now);
    pool.settle();
    google::protobuf::RepeatedPtrField<pool::LeaseState> seen;
    pool.core->view_leases(seen);
    return seen.at(0).parts(0).breaks();
  };
  CHECK(breaks().waiting() == 1);
  CHECK(breaks().resumed() == 7);
  use.clear_breaks();
  CHECK(breaks().waiting() == 0);
  report.clear_leases();
  CHECK(breaks().resumed() == 0);
}
