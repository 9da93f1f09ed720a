// Tests of `drain --move` in the core: moves of all leases of a node, waiting for room, with eviction.
#include "tests/scheduler/core/moving_pool.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::scheduler;

namespace {

void drain(MovingPool& pool, const std::string& node, bool evict = false, uint32_t grace = 100'000) {
  REQUIRE(pool.core->drain(node, "new fans", evict, grace, pool.now, true));
  pool.settle();
}

}  // namespace

TEST_CASE("a node that is drained with moves loses all of its leases, each as soon as there is room") {
  MovingPool pool({2, 1});
  const Stream second = pool.request(ask(1));
  REQUIRE(TestPool::where(*pool.grant(second)) == "n1:1");
  drain(pool, "n1");
  CHECK(pool.orders(pool.nodes[1]).move_size() == 1);
  const auto state = [&] { return *pool.core->view_node("n1"); };
  CHECK(state().moves_away());
  CHECK(state().leases_leaving() == 1);
  CHECK(state().leases_to_move() == 1);
  CHECK(pool.core->view_node("n2")->leases_arriving() == 1);
  std::vector<LeaseId> ids{pool.lease, pool.grant(second)->lease};
  if (pool.ordered(1).empty()) std::swap(ids[0], ids[1]);  // the first one moves
  const auto waits = pool.core->view_lease(ids[1]);
  REQUIRE(waits->moves_size() == 1);
  CHECK(waits->moves(0).state() == pool::LeaseMove::WAITING);
  CHECK(waits->moves(0).reason().starts_with("no other node can take 1 GPU of model A100"));
  CHECK(pool.core->why(lease::hexadecimal(ids[1]), pool.now)
            ->back()
            .starts_with("waits to move away from node 'n1', which is drained: no other node"));

  pool.start();  // draining is stored
  pool.add_node(1, 100, 2), pool.add_node(2, 101, 1);
  CHECK(state().leases_leaving() == 1);
  pool.report(pool.nodes[1], {{ids[0], 0}, {ids[1], 1}});
  CHECK(pool.leased_on(1) == 1000);
  pool.add_node(3, 103, 1);
  CHECK(pool.orders(pool.nodes[1]).move_size() == 1);
  CHECK(pool.orders(pool.nodes[1]).move(0).address() == "tcp://10.0.0.3:9700");
  pool.report(pool.nodes[1], {{ids[1], 0}});
  CHECK(state().leases() == 0);
  CHECK(pool.leased_milli() == 2000);
}

TEST_CASE("waiting moves go before the queue, but do not hold it up") {
  MovingPool pool({4, 2}, ask(4));
  drain(pool, "n1");
  CHECK(pool.ordered(1).empty());
  const Stream small = pool.request(ask(1));  // needs none of what the lease waits for
  CHECK(pool.grant(small));
  const Stream waits = pool.request(ask(3));
  CHECK(!pool.grant(waits));
  pool.add_node(3, 103, 4);
  CHECK(pool.ordered(1) == "tcp://10.0.0.3:9700");
  CHECK(!pool.grant(waits));
}

TEST_CASE("a lease whose move has failed is not moved again unless an operator says so") {
  MovingPool pool({1, 1, 1});
  drain(pool, "n1");
  REQUIRE(pool.ordered(1) == "tcp://10.0.0.2:9700");
  pool.pass_with({{1, 1}, {2, 0}, {3, 0}}, 60'000);
  pool.report_on(2, 0);
  CHECK(pool.leased_milli() == 1000);
  pool.pass_with({{1, 1}, {2, 0}, {3, 0}}, 10'000);
  CHECK(pool.ordered(1).empty());
  CHECK(pool.core->view_node("n1")->leases_not_moved() == 1);
  SECTION("with move") {
    REQUIRE(pool.move());
  }
  SECTION("with another drain") {
    drain(pool, "n1");
  }
  CHECK(pool.ordered(1) == "tcp://10.0.0.2:9700");
  CHECK(pool.core->view_node("n1")->leases_not_moved() == 0);
}

TEST_CASE("a lease whose new node is lost moves to another one") {
  MovingPool pool({1, 1, 1});
  drain(pool, "n1");
  REQUIRE(pool.ordered(1) == "tcp://10.0.0.2:9700");
  pool.pass_with({{1, 1}, {3, 0}}, 31'000);
  CHECK(pool.ordered(1) == "tcp://10.0.0.3:9700");
  CHECK(pool.granted_nodes() == "n1 0>n3");
}

TEST_CASE("undraining, and draining without moves, begin no further moves") {
  MovingPool pool({1, 1});
  const Stream other = pool.request(ask(1));
  REQUIRE(TestPool::where(*pool.grant(other)) == "n2:0");
  drain(pool, "n1");
  CHECK(!pool.state().moves().empty());
  SECTION("undrain") {
    REQUIRE(pool.core->undrain("n1", pool.now));
  }
  SECTION("drain") {
    REQUIRE(pool.core->drain("n1", "new disks", false, {}, pool.now));
  }
  pool.settle();
  CHECK(pool.state().moves().empty());
  finish(pool, other, pool.nodes[2]);
  CHECK(pool.ordered(1).empty());
}

TEST_CASE("a lease follows when the node that it moves to is drained as well") {
  MovingPool pool({1, 1, 1});
  drain(pool, "n1");
  REQUIRE(pool.ordered(1) == "tcp://10.0.0.2:9700");
  drain(pool, "n2");
  pool.report_on(1, 0);
  CHECK(pool.granted_nodes() == "n2 0>n3");
}

TEST_CASE("draining with moves and eviction evicts what is left after the grace") {
  MovingPool pool({3, 1});
  const Stream second = pool.request(ask(1));
  REQUIRE(TestPool::where(*pool.grant(second)) == "n1:1");
  drain(pool, "n1", true);  // one lease moves, the other one waits
  CHECK(pool.core->view_node("n1")->evict_at_ms() == pool.now + 100'000);
  const Time end = pool.now + 100'000;
  const LeaseId first = pool.lease, other = pool.grant(second)->lease;
  const LeaseId moving = pool.ordered(1).empty() ? other : first, waits = moving == first ? other : first;
  const auto both = [&](Time time) {
    for (; time > 0; time -= 1000)
      pool.pass(1000), pool.report(pool.nodes[1], {{first, 1}, {other, 1}}), pool.report(pool.nodes[2]);
  };
  SECTION("a lease that cannot move knows at once, one that waits before the end") {
    both(59'000);
    CHECK(!pool.core->view_lease(moving)->ending());
    both(2'000);
    CHECK(pool.core->view_lease(moving)->ending());
    CHECK(pool.core->view_lease(moving)->end_at_ms() == end);
    CHECK(!pool.core->view_lease(waits)->ending());
    both(8'000);
    CHECK(!pool.core->view_lease(waits)->ending());
    both(2'000);
    CHECK(pool.core->view_lease(waits)->ending());
    CHECK(pool.core->view_lease(waits)->end_at_ms() == end);
    CHECK(pool.core->view_lease(waits)->end_reason() == "node 'n1' is drained: new fans");
  }
  SECTION("a lease that moves ends at the end") {
    pool.limit_moves(0);
    both(99'000);
    CHECK(!pool.core->view_lease(moving)->ending());
    both(2'000);
    CHECK(pool.core->view_lease(moving)->ending());
    CHECK(pool.core->view_lease(moving)->end_at_ms() <= pool.now);
  }
  SECTION("a new leader evicts, too") {
    pool.start();
    pool.add_node(1, 100, 3), pool.add_node(2, 101, 1);
    pool.limit_moves(0);
    both(101'000);
    CHECK(pool.core->view_lease(moving)->ending());
    CHECK(pool.core->view_lease(waits)->ending());
  }
  SECTION("a lease that has moved stays") {
    pool.report(pool.nodes[1], {{moving, 0}, {waits, 1}});
    both(1'000);
    pool.pass(101'000);
  }
}

TEST_CASE("without grace, draining with moves and eviction evicts at once") {
  MovingPool pool({1, 1});
  drain(pool, "n1", true, 0);
  CHECK(pool.state().ending());
}

TEST_CASE("operators see moves") {
  MovingPool pool({1, 1});
  REQUIRE(pool.move());
  pool.report_on(1, 2, "a reason"), pool.report_on(2, 1);
  REQUIRE(pool.state().moves_size() == 1);
  const pool::LeaseMove seen = pool.state().moves(0);
  CHECK(seen.state() == pool::LeaseMove::MOVING);
  CHECK(seen.from() == "n1");
  CHECK(seen.to() == "n2");
  CHECK(seen.since_ms() == pool.now);
  CHECK(seen.reason() == "a reason");
  CHECK(seen.part().node() == "n2");
  CHECK(seen.part().sessions() == 1);
  CHECK(pool.state().parts_size() == 1);
  const auto lines = *pool.core->why(lease::hexadecimal(pool.lease), pool.now);
  REQUIRE(lines.size() == 4);
  CHECK(lines[2] == "moving from node 'n1' to node 'n2' for 0 s: 2 sessions left, 1 session there; a reason");
  CHECK(lines[3] == "the move is turned round in 60 s (policy move)");
  pool.pass_with({{1, 2}, {2, 1}}, 60'000);
  const auto turned = *pool.core->why(lease::hexadecimal(pool.lease), pool.now);
  REQUIRE(turned.size() == 5);
  CHECK(turned[2] ==
        "the move to node 'n2' has failed: it did not end within 60 s: 2 sessions left on node 'n1'");
  CHECK(
      turned[3] ==
      "node 'n2' keeps its share until no session is left there (1 session now), its poold is restarted, or "
      "it is removed");
  CHECK(turned[4] ==
        "not moved away from node 'n1': it did not end within 60 s: 2 sessions left on node 'n1'");
}
