// Tests of moves of leases in the core that are disturbed: lost nodes, ends of the lease, new leaders.
#include "scheduler/core/records.pb.h"
#include "tests/scheduler/core/moving_pool.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::scheduler;

namespace {

void restart(MovingPool& pool, uint64_t node, uint64_t boot) {
  pool.core->node_disconnected(pool.nodes[node], pool.now);
  pool.add_node(node, boot, 1);
}

// Crashes, and lets the given nodes and the holder return to the new leader.
void crash(MovingPool& pool, const std::vector<std::pair<uint64_t, uint64_t>>& boots) {
  pool.start();
  for (const auto& [node, boot] : boots) pool.add_node(node, boot, 1);
  pool.core->resume(pool.holder = ++pool.streams, "a", pool.lease, pool.now);
  pool.settle();
}

}  // namespace

TEST_CASE("a lease stays where it is if the node that it was to move to goes") {
  MovingPool pool({1, 1});
  pool.limit_moves(0);
  REQUIRE(pool.move());
  SECTION("restarted") {
    restart(pool, 2, 200);
    CHECK(pool.leased_on(2) == 0);
    CHECK(pool.reason_of("lease_move_failed") == "node 'n2' was restarted");
    CHECK(pool.state().moves().empty());
    CHECK(pool.move());  // to the new process
    CHECK(pool.grant(pool.holder)->moves.at(0).to.lease.boot() == boot_id(200));
    return;
  }
  SECTION("ended by its poold") {
    pool.report_on(2, 0);
    CHECK(pool.leased_on(2) == 0);
    CHECK(pool.reason_of("lease_move_failed") == "node 'n2' ended it");
  }
  SECTION("lost") {
    pool.pass_with({{1, 1}}, 31'000);
    CHECK(pool.reason_of("lease_move_failed") == "node 'n2' was lost (no heartbeat)");
    CHECK(pool.leased_on(2) == 1000);
    CHECK(!pool.state().ending());
    CHECK(pool.granted_nodes() == "n1");
    SECTION("and back: sessions there go back to the first node") {
      pool.report_on(2, 1);
      CHECK(pool.ordered(2) == "tcp://10.0.0.1:9700");
      CHECK(!pool.move());
      pool.report_on(2, 0);
      CHECK(pool.leased_on(2) == 0);
    }
    SECTION("and restarted") {
      restart(pool, 2, 200);
      CHECK(pool.leased_on(2) == 0);
    }
    SECTION("and removed") {
      const auto ended = pool.core->remove_node("n2", pool.now);
      REQUIRE(ended);
      CHECK(*ended == 0);
      pool.settle();
    }
    SECTION("and a third node takes the lease") {
      pool.add_node(3, 103, 1);
      REQUIRE(pool.move());
      CHECK(pool.granted_nodes() == "n1 0>n3");
      pool.report_on(1, 0);
      CHECK(pool.granted_nodes() == "n3");
      CHECK(pool.leased_on(2) == 1000);
      pool.report_on(2, 1);
      CHECK(pool.ordered(2) == "tcp://10.0.0.3:9700");
      pool.report_on(2, 0);
      CHECK(pool.leased_milli() == 1000);
      return;
    }
  }
  CHECK(pool.ordered(1).empty());
  CHECK(pool.granted_nodes() == "n1");
  CHECK(pool.leased_milli() == 1000);
  CHECK(pool.counted_milli() == 1000);
  finish(pool, pool.holder, pool.nodes[1]);
  CHECK(pool.leased_milli() == 0);
}

TEST_CASE("a lease goes on at the other node if the node that it leaves goes") {
  MovingPool pool({1, 1});
  pool.limit_moves(0);
  REQUIRE(pool.move());
  SECTION("restarted") {
    restart(pool, 1, 200);
    CHECK(pool.reason_of("lease_moved") == "node 'n1' was restarted");
  }
  SECTION("removed") {
    pool.core->node_disconnected(pool.nodes[1], pool.now);
    CHECK(*pool.core->remove_node("n1", pool.now) == 0);
    pool.settle();
  }
  SECTION("lost") {
    pool.pass_with({{2, 1}}, 31'000);
    CHECK(pool.reason_of("lease_moved") == "node 'n1' was lost (no heartbeat)");
    CHECK(pool.granted_nodes() == "n2");
    CHECK(pool.leased_on(1) == 1000);
    REQUIRE(pool.state().moves_size() == 1);
    CHECK(pool.state().moves(0).state() == pool::LeaseMove::LEAVING);
    SECTION("and back: its sessions follow") {
      pool.report_on(1, 1);
      CHECK(pool.ordered(1) == "tcp://10.0.0.2:9700");
      CHECK(pool.granted_nodes() == "n2");
      pool.report_on(1, 0);
    }
    SECTION("and the other one is lost, too") {
      pool.pass(31'000);
      CHECK(pool.state().end() == pool::Ended::NODE_LOST);
      CHECK(pool.counted_milli() == 0);
      pool.report_on(1, 1);
      CHECK(pool.told_to_end(1));
      pool.report_on(1, 0);
      CHECK(pool.leased_on(2) == 1000);
      pool.report_on(2, 0);
      CHECK(pool.leased_milli() == 0);
      CHECK(!pool.core->view_lease(pool.lease));
      return;
    }
  }
  CHECK(pool.granted_nodes() == "n2");
  CHECK(pool.leased_milli() == 1000);
  CHECK(pool.counted_milli() == 1000);
  finish(pool, pool.holder, pool.nodes[2]);
  CHECK(pool.leased_milli() == 0);
}

TEST_CASE("a turned move survives the loss of either node") {
  MovingPool pool({1, 1});
  REQUIRE(pool.move());
  pool.pass_with({{1, 1}, {2, 1}}, 60'000);
  REQUIRE(pool.ordered(2) == "tcp://10.0.0.1:9700");
  SECTION("the node that the sessions leave") {
    restart(pool, 2, 200);
    CHECK(pool.granted_nodes() == "n1");
    CHECK(pool.leased_milli() == 1000);
  }
  SECTION("the node that they go back to") {
    restart(pool, 1, 200);
    CHECK(pool.granted_nodes() == "n2");
    CHECK(pool.ordered(2).empty());
    CHECK(pool.leased_milli() == 1000);
  }
  SECTION("the node that they go back to, without a new process") {
    pool.pass_with({{2, 1}}, 31'000);
    CHECK(pool.granted_nodes() == "n2");
    CHECK(pool.leased_milli() == 2000);
    pool.report_on(1, 0);
    CHECK(pool.leased_milli() == 1000);
  }
  CHECK(!pool.state().ending());
  CHECK(pool.counted_milli() == 1000);
}

TEST_CASE("a lease on several nodes ends with all of its parts if another part is lost while one moves") {
  MovingPool pool({1, 1, 1}, ask(2));
  REQUIRE(pool.move("", "n1"));
  restart(pool, 2, 200);
  CHECK(pool.state().end() == pool::Ended::NODE_LOST);
  CHECK(pool.told_to_end(1));
  CHECK(pool.told_to_end(3));
  CHECK(pool.ordered(1).empty());
  pool.report_on(1, 0), pool.report_on(3, 0);
  CHECK(pool.leased_milli() == 0);
  CHECK(pool.counted_milli() == 0);
}

TEST_CASE("a lease that ends while it moves ends on both nodes") {
  const bool new_node_first = GENERATE(false, true);
  pool::Request wish = ask(1);
  wish.set_priority(lease::BEST_EFFORT);
  MovingPool pool({1, 1}, wish);
  REQUIRE(pool.move());
  const std::string id = lease::hexadecimal(pool.lease);
  SECTION("released") {
    pool.core->release(pool.holder, pool.now);
  }
  SECTION("evicted") {
    REQUIRE(pool.core->evict(id, "a reason", 0, pool.now));
  }
  SECTION("expired") {
    pool.core->client_disconnected(pool.holder, pool.now);
    pool.pass_with({{1, 1}, {2, 0}}, 31'000);
  }
  SECTION("preempted for the GPU that it moves to") {
    REQUIRE(pool.core->drain("n1", "", false, {}, pool.now));
    const Stream urgent = pool.request(ask(1));
    CHECK(pool.state().end() == pool::Ended::PREEMPTED);
    pool.pass_with({{1, 1}, {2, 1}}, 31'000);
    pool.report_on(2, 0);
    CHECK(pool.grant(urgent));
    pool.report_on(1, 0);
    CHECK(pool.leased_milli() == 1000);
    return;
  }
  SECTION("released after it was turned round") {
    pool.pass_with({{1, 1}, {2, 1}}, 60'000);
    REQUIRE(!pool.ordered(2).empty());
    pool.core->release(pool.holder, pool.now);
  }
  pool.settle();
  CHECK(pool.state().ending());
  CHECK(pool.told_to_end(1));
  CHECK(pool.told_to_end(2));
  CHECK(pool.ordered(1).empty());
  CHECK(pool.ordered(2).empty());
  CHECK(pool.counted_milli() == 1000);
  if (new_node_first) {
    pool.report_on(2, 0);
    CHECK(pool.counted_milli() == 1000);
    pool.report_on(1, 0);
  } else {
    pool.report_on(1, 0);
    CHECK(pool.counted_milli() == 0);  // nothing that the tenant was granted is left
    pool.start();
    CHECK(pool.leased_on(2) == 1000);
    CHECK(pool.counted_milli() == 0);
    pool.add_node(2, 101, 1);
    pool.report_on(2, 0);
  }
  CHECK(pool.leased_milli() == 0);
  CHECK(pool.counted_milli() == 0);
  CHECK(!pool.core->view_lease(pool.lease));
}

TEST_CASE("a new leader continues a move") {
  MovingPool pool({1, 1});
  REQUIRE(pool.move());
  const std::vector<std::pair<uint64_t, uint64_t>> both{{1, 100}, {2, 101}};
  crash(pool, both);
  CHECK(pool.leased_milli() == 2000);
  CHECK(pool.counted_milli() == 1000);
  CHECK(pool.granted_nodes() == "n1 0>n2");
  CHECK(pool.ordered(1) == "tcp://10.0.0.2:9700");
  SECTION("to its end") {
    pool.report_on(1, 0);
    crash(pool, both);
    CHECK(pool.granted_nodes() == "n2");
    CHECK(pool.leased_milli() == 1000);
  }
  SECTION("that is turned round, and remembers the reason") {
    pool.pass_with({{1, 1}, {2, 1}}, 59'000);
    pool.report_on(1, 1, "a reason");
    pool.pass_with({{1, 1}, {2, 1}}, 1'000);
    crash(pool, both);
    CHECK(pool.granted_nodes() == "n1 0>n2");
    CHECK(pool.ordered(2) == "tcp://10.0.0.1:9700");
    CHECK(pool.state().moves(1).reason().starts_with("it did not end within 60 s: "));
    pool.report_on(2, 0);
    crash(pool, both);
    CHECK(pool.granted_nodes() == "n1");
    CHECK(pool.leased_milli() == 1000);
    CHECK(pool.move());
  }
  SECTION("that has no time left, but not before the node has answered") {
    pool.now += 600'000;
    pool.core->resume(pool.holder, "a", pool.lease, pool.now);
    pool.start();
    pool.add_node(1, 100, 1), pool.add_node(2, 101, 1);
    pool.pass(200);
    CHECK(pool.ordered(1) == "tcp://10.0.0.2:9700");
    pool.report_on(1, 0);
    CHECK(pool.state().parts(0).node() == "n2");
  }
}

TEST_CASE("an inconsistent record of a move is rejected") {
  MovingPool pool({1, 1});
  REQUIRE(pool.move());
  const auto refused = [&](const std::map<std::string, std::string>& stored) {
    Core core([] { return LeaseId(16, 'x'); }, [](Nodes& nodes) { return std::make_unique<FirstFit>(nodes); },
              pool.now);
    return !core.restore({stored.begin(), stored.end()}, pool.now);
  };
  CHECK(!refused(pool.store));
  auto without_node = pool.store;
  without_node.erase("node/n2");
  CHECK(refused(without_node));
  const std::string key = "lease/" + lease::hexadecimal(pool.lease);
  const auto refused_with = [&](auto change) {
    LeaseRecord record;
    REQUIRE(record.ParseFromString(pool.store.at(key)));
    change(record);
    auto stored = pool.store;
    stored[key] = record.SerializeAsString();
    return refused(stored);
  };
  CHECK(!refused_with([](LeaseRecord&) {}));
  CHECK(refused_with([](LeaseRecord& record) { record.mutable_move()->set_place(1); }));
  CHECK(refused_with([](LeaseRecord& record) { record.set_ending(true); }));
  CHECK(refused_with([](LeaseRecord& record) { record.mutable_move()->mutable_to()->clear_shares(); }));
  CHECK(refused_with([](LeaseRecord& record) {
    record.mutable_move()->mutable_to()->mutable_shares(0)->set_compute_milli(1);
  }));
  CHECK(refused_with([](LeaseRecord& record) { record.mutable_move()->mutable_to()->set_uncounted(false); }));
  CHECK(refused_with([](LeaseRecord& record) {
    LeavingRecord& twice = *record.add_leaving();
    *twice.mutable_part() = record.move().to();
    record.clear_move();
    *record.add_leaving() = twice;
  }));
}

TEST_CASE("a node with sessions of a lease that has left it is fenced") {
  MovingPool pool({1, 1});
  REQUIRE(pool.move());
  pool.report_on(1, 0);
  pool.report_on(1, 1);
  CHECK(pool.core->view_node("n1")->condition() == pool::NodeState::FENCED);
  CHECK(pool.told_to_end(1));
}

TEST_CASE("a node's answer to an earlier order to move does not answer the present one") {
  MovingPool pool({1, 1});
  const auto ordered_serial = [&] { return pool.orders(pool.nodes.at(1)).move(0).serial(); };
  const auto answer = [&](uint64_t serial) {
    pool::NodeReport report;
    report.set_ready(true);
    report.set_now_ms(pool.now);
    report.add_leases()->set_lease(pool.lease);
    report.mutable_leases(0)->set_void_serial(serial);
    pool.core->report(pool.nodes.at(1), report, pool.now);
    pool.settle();
  };
  REQUIRE(pool.move());
  const uint64_t first = ordered_serial();
  restart(pool, 2, 200);  // the node has executed the order, and its answer is on its way
  REQUIRE(pool.move());
  REQUIRE(ordered_serial() > first);
  answer(first);
  CHECK(pool.leased_on(1) == 1000);
  CHECK(pool.ordered(1) == "tcp://10.0.0.2:9700");
  answer(ordered_serial());
  CHECK(pool.leased_on(1) == 0);
  CHECK(pool.granted_nodes() == "n2");
}
