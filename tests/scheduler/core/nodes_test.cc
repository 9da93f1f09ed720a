// Tests of nodes in the core: registration, heartbeats, loss, draining, fencing.
#include "tests/scheduler/core/pool.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::scheduler;

namespace {

pool::NodeState::Condition condition(const TestPool& pool, const std::string& node = "n1") {
  return pool.core->view_node(node)->condition();
}

bool refused(const TestPool& pool, Stream stream) {
  for (const NodeMessage& one : pool.published.nodes) {
    if (one.stream == stream && one.refusal) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("a silent node gets no leases and the shares of a lost node stay allocated") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 2);
  const Stream holder = pool.request(ask(1));
  const LeaseId id = pool.grant(holder)->lease;
  pool.pass(6'001);
  CHECK(condition(pool) == pool::NodeState::SILENT);
  CHECK(!pool.grant(pool.request(ask(1))));
  pool.pass(24'000);
  CHECK(condition(pool) == pool::NodeState::LOST);
  CHECK(pool.last_message<pool::Ended>(holder)->why() == pool::Ended::NODE_LOST);
  CHECK(pool.leased_milli() == 1000);
  pool::PoolSnapshot seen;
  pool.core->view_tenants(*seen.mutable_tenants(), pool.now);
  CHECK(seen.tenants(0).leases() == 0);  // leases on a lost node do not count against the quota
  SECTION("it is back, the same process") {
    pool.report(node, {{id, 1}});
    CHECK(condition(pool) == pool::NodeState::OPEN);
    CHECK(pool.orders(node).end_size() == 1);
    CHECK(pool.leased_milli() == 2000);  // the waiting request got the other GPU
    pool.report(node, {{id, 0}});
    CHECK(pool.leased_milli() == 1000);
  }
  SECTION("it is back, another process") {
    const Stream again = pool.register_node(1, 2, 2);
    CHECK(pool.orders(again).end_size() == 0);
    CHECK(pool.leased_milli() == 1000);
  }
  SECTION("an operator removes it") {
    REQUIRE(pool.core->remove_node("n1", pool.now));
    pool.settle();
    CHECK(pool.leased_milli() == 0);
    CHECK(!pool.core->view_node("n1"));
    // The removed process is alive after all, and may have sessions with the old tokens.
    for (int crash = 0; crash < 2; ++crash) {
      const Stream back = pool.register_node(1, 1, 2);
      CHECK(condition(pool) == pool::NodeState::FENCED);
      CHECK(pool.orders(back).fenced_because() == "removed by an operator; restart its poold");
      pool.start();
    }
    const Stream anew = pool.register_node(1, 3, 2);
    CHECK(condition(pool) == pool::NodeState::OPEN);
    CHECK(pool.orders(anew).fenced_because().empty());
  }
}

TEST_CASE("a connected node cannot be removed") {
  TestPool pool;
  pool.register_node(1, 1, 1);
  CHECK(!pool.core->remove_node("n1", pool.now));
  CHECK(!pool.core->remove_node("n2", pool.now));
}

TEST_CASE("a lease on several nodes ends on all of them if one is lost") {
  TestPool pool;
  const Stream one = pool.register_node(1, 1, 1);
  const Stream two = pool.register_node(2, 2, 1);
  const Stream holder = pool.request(ask(2));
  const LeaseId id = pool.grant(holder)->lease;
  pool.core->node_disconnected(two, pool.now);
  pool.register_node(2, 3, 1);
  CHECK(pool.last_message<pool::Ended>(holder)->why() == pool::Ended::NODE_LOST);
  CHECK(pool.last_message<pool::Ended>(holder)->at_ms() == pool.now + 30'000);
  CHECK(pool.orders(one).end(0).lease() == id);
  CHECK(pool.leased_milli() == 1000);
  pool.start();  // the freed part is not restored
  CHECK(pool.leased_milli() == 1000);
  const Stream back = pool.register_node(1, 1, 1);
  pool.report(back, {{id, 0}});
  CHECK(pool.leased_milli() == 0);
}

TEST_CASE("a drained node keeps its leases and gets no new ones and draining is stored") {
  TestPool pool;
  pool.register_node(1, 1, 2);
  const Stream holder = pool.request(ask(1));
  REQUIRE(pool.core->drain("n1", "new disks", false, {}, pool.now));
  pool.settle();
  CHECK(!pool.last_message<pool::Ended>(holder));
  CHECK(!pool.grant(pool.request(ask(1))));
  pool.start();
  pool.register_node(1, 1, 2);
  CHECK(condition(pool) == pool::NodeState::DRAINED);
  CHECK(pool.core->view_node("n1")->because() == "new disks");
  REQUIRE(pool.core->drain("n1", "at once", true, 0, pool.now));
  pool.settle();
  pool::PoolSnapshot seen;
  pool.core->view_leases(*seen.mutable_leases());
  CHECK(seen.leases(0).end() == pool::Ended::EVICTED);
  REQUIRE(pool.core->undrain("n1", pool.now));
  CHECK(condition(pool) == pool::NodeState::OPEN);
}

TEST_CASE("a node's condition has its start time") {
  TestPool pool;
  const auto since = [&] { return pool.core->view_node("n1")->since_ms(); };
  const Time came = pool.now;
  const Stream node = pool.register_node(1, 1, 1);
  pool.pass(2'000), pool.report(node);
  CHECK(since() == came);
  const Time drained = pool.now;
  REQUIRE(pool.core->drain("n1", "new disks", false, {}, pool.now));
  pool.pass(1'000), pool.report(node);
  REQUIRE(pool.core->drain("n1", "newer disks", false, {}, pool.now));
  pool.settle();
  CHECK(since() == drained);
  pool.pass(5'000);
  CHECK(since() == drained);
  pool.pass(2'000);
  CHECK(condition(pool) == pool::NodeState::SILENT);
  CHECK(since() == pool.now);
  pool.start();
  pool.register_node(1, 1, 1);
  CHECK(condition(pool) == pool::NodeState::DRAINED);
  CHECK(since() == drained);  // restored from the store
}

TEST_CASE("a node whose poold was stopped is shown as stopped, not as silent, until it is started again") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 1);
  const Stream holder = pool.request(ask(1));
  pool::NodeReport last;
  last.set_leaving(true);
  last.set_now_ms(pool.now);
  const Time stopped = pool.now;
  pool.core->report(node, last, pool.now);
  pool.settle();
  CHECK(condition(pool) == pool::NodeState::STOPPED);
  pool.core->node_disconnected(node, pool.now);
  pool.settle();
  CHECK(condition(pool) == pool::NodeState::STOPPED);
  CHECK(pool.core->view_node("n1")->because() == "poold was shut down");
  CHECK(std::none_of(pool.published.notes.begin(), pool.published.notes.end(),
                     [](const Note& note) { return note.event == std::string("node_cut"); }));
  pool.request(ask(1));
  CHECK(pool.core->why("q2", pool.now)
            ->at(2)
            .ends_with("0 can be leased now; n1 is stopped (poold was shut down)"));
  pool.pass(31'000);  // its leases end as on any lost node
  CHECK(pool.last_message<pool::Ended>(holder)->why() == pool::Ended::NODE_LOST);
  CHECK(pool.last_message<pool::Ended>(holder)->reason() == "node 'n1' was stopped");
  CHECK(condition(pool) == pool::NodeState::STOPPED);
  pool.start();
  CHECK(condition(pool) == pool::NodeState::STOPPED);
  CHECK(pool.core->view_node("n1")->since_ms() == stopped);
  pool.register_node(1, 2, 1);
  CHECK(condition(pool) == pool::NodeState::OPEN);
}

TEST_CASE("a poold that is started again at once need not wait until its predecessor's connection is cut") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 1);
  pool::NodeReport last;
  last.set_leaving(true);
  last.set_now_ms(pool.now);
  pool.core->report(node, last, pool.now);
  pool.settle();
  CHECK(!refused(pool, pool.register_node(1, 2, 1)));
  CHECK(condition(pool) == pool::NodeState::OPEN);
}

TEST_CASE("the same process with another inventory is fenced until it is another process") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 2);
  pool.core->node_disconnected(node, pool.now);
  pool.register_node(1, 1, 3);
  CHECK(condition(pool) == pool::NodeState::FENCED);
  CHECK(!pool.grant(pool.request(ask(1))));
  pool.pass(7'000);
  pool.register_node(1, 2, 3);
  CHECK(condition(pool) == pool::NodeState::OPEN);
}

TEST_CASE("two processes cannot be one node at the same time") {
  TestPool pool;
  const Stream first = pool.register_node(1, 1, 1);
  const Stream twin = pool.register_node(1, 2, 1);
  CHECK(refused(pool, twin));
  CHECK(!refused(pool, first));
  const Stream again = pool.register_node(1, 1, 1);  // the same process over another connection
  CHECK(refused(pool, first));
  CHECK(!refused(pool, again));
}

TEST_CASE("a flapping node is fenced until it is stable for a minute") {
  TestPool pool;
  Stream node = 0;
  for (int i = 0; i < 6; ++i) {
    if (node != 0) pool.core->node_disconnected(node, pool.now);
    pool.pass(1000);
    node = pool.register_node(1, 1, 1);
  }
  CHECK(condition(pool) == pool::NodeState::FENCED);
  for (int i = 0; i < 59; ++i) pool.pass(1000), pool.report(node);
  CHECK(condition(pool) == pool::NodeState::FENCED);
  for (int i = 0; i < 2; ++i) pool.pass(1000), pool.report(node);
  CHECK(condition(pool) == pool::NodeState::OPEN);
}

TEST_CASE("a node without the scheduler's public key is fenced until it has the key") {
  TestPool pool;
  pool.core->sign_with("this-key");
  const Stream node = pool.register_node(1, 1, 1);
  CHECK(condition(pool) == pool::NodeState::OPEN);  // an older poold does not report its keys
  const auto report = [&](const std::vector<std::string>& keys) {
    pool::NodeReport report;
    report.set_ready(true);
    report.set_now_ms(pool.now);
    for (const std::string& key : keys) report.add_key_ids(key);
    pool.core->report(node, report, pool.now);
    pool.settle();
  };
  report({"old-key1", "old-key2"});
  CHECK(condition(pool) == pool::NodeState::FENCED);
  CHECK(pool.core->view_node("n1")->because().starts_with("its poold lacks this scheduler's public key: "));
  const Stream waits = pool.request(ask(1));
  CHECK(!pool.grant(waits));
  report({"old-key1", "this-key"});
  CHECK(condition(pool) == pool::NodeState::OPEN);
  CHECK(pool.grant(waits));
}

TEST_CASE("sessions of an unknown lease fence a node and are ordered to end") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 1);
  pool.report(node, {{LeaseId(16, 'z'), 2}});
  CHECK(condition(pool) == pool::NodeState::FENCED);
  CHECK(pool.orders(node).end(0).lease() == LeaseId(16, 'z'));
  pool.report(node, {{LeaseId(16, 'z'), 0}});
  CHECK(condition(pool) == pool::NodeState::OPEN);
}

TEST_CASE(
    "a node that reports an impossible serial is fenced and does not affect the leases of other nodes") {
  TestPool pool;
  pool.register_node(1, 1, 1);
  const Stream liar = pool.register_node(2, 2, 1);
  const Stream holder = pool.request(ask(2));
  const LeaseId id = pool.grant(holder)->lease;
  pool::NodeReport report;
  report.set_ready(true);
  report.set_now_ms(pool.now);
  pool::LeaseUse& use = *report.add_leases();
  use.set_lease(id);
  use.set_sessions(1);
  use.set_serial(1);
  pool.core->report(liar, report, pool.now);
  pool.settle();
  CHECK(condition(pool, "n2") == pool::NodeState::OPEN);
  use.set_serial(UINT64_MAX);
  pool.core->report(liar, report, pool.now);
  pool.settle();
  CHECK(condition(pool, "n2") == pool::NodeState::FENCED);
  CHECK(condition(pool, "n1") == pool::NodeState::OPEN);
  pool.core->client_disconnected(holder, pool.now);
  const Stream again = ++pool.streams;
  pool.core->resume(again, "a", id, pool.now);
  pool.settle();
  CHECK(pool.grant(again)->servers[0].lease.serial() == 2);  // the false report did not change the serial
}

TEST_CASE("a request that only a fenced untrusted node fits is refused") {
  TestPool pool;
  const Stream honest = pool.register_node(1, 1, 1);
  const Stream liar = pool.register_node(2, 2, 1);
  for (int i = 0; i < 11; ++i) pool.pass(1000), pool.report(honest), pool.report(liar);
  const LeaseId id = pool.grant(pool.request(ask(2)))->lease;
  CHECK(!pool.last_message<Refusal>(pool.request(ask(2))));
  pool::NodeReport report;
  report.set_ready(true);
  report.set_now_ms(pool.now);
  pool::LeaseUse& use = *report.add_leases();
  use.set_lease(id);
  use.set_serial(UINT64_MAX);
  pool.core->report(liar, report, pool.now);
  pool.settle();
  REQUIRE(condition(pool, "n2") == pool::NodeState::FENCED);
  CHECK(pool.last_message<Refusal>(pool.request(ask(2))));
}

TEST_CASE("a lease ends when its node reports its end") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 1);
  const Stream holder = pool.request(ask(1));
  pool.report(node, {{pool.grant(holder)->lease, 0}});
  CHECK(pool.last_message<pool::Ended>(holder)->why() == pool::Ended::EVICTED);
  CHECK(pool.last_message<pool::Ended>(holder)->at_ms() == 0);
  CHECK(pool.leased_milli() == 0);
}

TEST_CASE("a suspended scheduler does not count the lost time against nodes and clients") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 2);
  const Stream away = pool.request(ask(1)), here = pool.request(ask(1));
  pool.core->client_disconnected(away, pool.now);
  pool.settle();
  SECTION("it sees the time first") {
    pool.suspend_for(3'600'000);
  }
  SECTION("it sees first that its node has given it up") {
    pool.now += 3'600'000;
    pool.core->node_disconnected(node, pool.now);
    pool.pass(1);
  }
  CHECK(condition(pool) != pool::NodeState::LOST);
  CHECK(!pool.last_message<pool::Ended>(here));
  CHECK(pool.leased_milli() == 2000);
  const Stream back = pool.register_node(1, 1, 2);
  CHECK(condition(pool) == pool::NodeState::OPEN);
  CHECK(pool.orders(back).end_size() == 0);
  pool.pass(29'000);
  CHECK(pool.leased_milli() == 2000);
  for (int i = 0; i < 3; ++i) pool.pass(1'000), pool.report(back);
  CHECK(pool.orders(back).end_size() == 1);  // the lease whose client did not come back in time
}

TEST_CASE("invalid inventories are rejected") {
  TestPool pool;
  const auto refused_with = [&](auto change) {
    pool::NodeReport report = first_report(1, 1, 2);
    change(*report.mutable_inventory());
    pool.core->register_node(++pool.streams, report, pool.now);
    pool.settle();
    return refused(pool, pool.streams);
  };
  CHECK(refused_with([](auto& inventory) { inventory.set_node("a/b"); }));
  CHECK(refused_with([](auto& inventory) { inventory.set_boot("short"); }));
  CHECK(refused_with([](auto& inventory) { inventory.clear_addresses(); }));
  CHECK(refused_with([](auto& inventory) { inventory.mutable_gpus(1)->set_uuid(inventory.gpus(0).uuid()); }));
  CHECK(refused_with([](auto& inventory) { inventory.mutable_gpus(0)->set_uuid("GPU-1"); }));
  CHECK(refused_with([](auto& inventory) { inventory.mutable_gpus(0)->set_model("a\nb"); }));
  CHECK(refused_with([](auto& inventory) { inventory.mutable_gpus(0)->set_memory_bytes(0); }));
  CHECK(!refused_with([](auto&) {}));
}

TEST_CASE("a node's clock skew is reported and has no other effect") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 1);
  pool::NodeReport report;
  report.set_ready(true);
  report.set_now_ms(pool.now + 60'000);
  pool.core->report(node, report, pool.now);
  pool.settle();
  CHECK(condition(pool) == pool::NodeState::OPEN);
  CHECK(pool.core->view_node("n1")->clock_ahead_ms() == 60'000);
  CHECK(std::string(pool.published.notes.back().event) == "clock_skew");
}

TEST_CASE("a host with several GPU models grants the requested model or a mixture") {
  TestPool pool(true);
  pool::NodeReport report = first_report(1, 1, 4);
  for (const int gpu : {1, 3}) report.mutable_inventory()->mutable_gpus(gpu)->set_model("H100");
  report.set_now_ms(pool.now);
  pool.core->register_node(++pool.streams, report, pool.now);
  pool.settle();
  pool::Request wish = ask(2);
  wish.set_one_host(true);
  wish.add_models("H100");
  const Grant* const grant = pool.grant(pool.request(wish));
  REQUIRE(grant);
  CHECK(TestPool::where(*grant) == "n1:1,3");
  const Stream holder = pool.streams;
  wish.clear_models();
  wish.set_gpus(3);
  const Stream waiting = pool.request(wish);
  CHECK(!pool.grant(waiting));
  const Stream one = pool.request(ask(1));  // all free GPUs are reserved for the waiting request
  CHECK(!pool.grant(one));
  pool.core->release(holder, pool.now);
  pool.settle();
  pool.report(1, {{pool.grant(holder)->lease, 0}});
  REQUIRE(pool.grant(waiting));
  CHECK(pool.grant(waiting)->servers.size() == 1);
  CHECK(pool.grant(one));
}
