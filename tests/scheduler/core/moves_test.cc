// Tests of moves of leases in the core: begin, end, time limit, failures, end of the lease, new leader.
#include "tests/scheduler/core/moving_pool.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::scheduler;

TEST_CASE("a moving lease has a token for the other node until the first one reports that it has left") {
  MovingPool pool({2, 2}, ask(1, 500, 4 * kGiB));
  REQUIRE(pool.move("n2"));
  const Grant& moving = *pool.grant(pool.holder);
  REQUIRE(pool.granted_nodes() == "n1 0>n2");
  CHECK(moving.servers[0].lease.serial() == 2);
  const GrantedServer& to = moving.moves[0].to;
  CHECK(to.address == "tcp://10.0.0.2:9700");
  CHECK(to.lease.boot() == boot_id(101));
  CHECK(to.lease.id() == pool.lease);
  CHECK(to.lease.serial() == 2);
  REQUIRE(to.lease.shares_size() == 1);
  CHECK(to.lease.shares(0).gpu_uuid() == gpu_uuid(2, 0));
  CHECK(to.lease.shares(0).compute_milli() == 500);
  CHECK(to.lease.shares(0).memory_bytes() == 4 * kGiB);
  CHECK(pool.ordered(2).empty());
  CHECK(pool.orders(pool.nodes[1]).move(0).serial() == 2);
  for (int i = 0; i < 2; ++i) {
    CHECK(pool.ordered(1) == "tcp://10.0.0.2:9700");
    CHECK(pool.orders(pool.nodes.at(1)).move(0).serial() == 2);  // of the last token for n1
    pool.published.nodes.clear();
    pool.report_on(1, 1), pool.report_on(2, 1);
  }
  CHECK(pool.leased_on(1) == 500);
  CHECK(pool.leased_on(2) == 500);
  CHECK(pool.counted_milli() == 500);

  pool.report_on(1, 0);
  CHECK(pool.granted_nodes() == "n2");
  CHECK(pool.grant(pool.holder)->servers[0].lease.serial() == 3);
  CHECK(pool.ordered(1).empty());
  CHECK(pool.leased_on(1) == 0);
  CHECK(pool.leased_on(2) == 500);
  CHECK(pool.counted_milli() == 500);
  CHECK(pool.state().parts(0).sessions() == 1);
  CHECK(pool.state().moves().empty());
  CHECK(pool.core->view_pool().counters().moves_begun() == 1);
  CHECK(pool.core->view_pool().counters().moves_done() == 1);
  CHECK(pool.reason_of("lease_moving").empty());
  CHECK(pool.reason_of("lease_moved").empty());
  finish(pool, pool.holder, pool.nodes[2]);
  CHECK(pool.leased_milli() == 0);
  CHECK(pool.counted_milli() == 0);
}

TEST_CASE("a move is stored before client and nodes hear of it") {
  MovingPool pool({1, 1});
  REQUIRE(pool.core->move(lease::hexadecimal(pool.lease), "", "", pool.now));
  const Effects effects = pool.core->take(pool.now);
  REQUIRE(effects.writes.size() == 1);
  CHECK(effects.writes[0].key == "lease/" + lease::hexadecimal(pool.lease));
  CHECK(effects.clients.size() == 1);
  CHECK(effects.nodes.size() == 1);
}

TEST_CASE("renewed and resumed leases keep the token for the node that they move to") {
  MovingPool pool({1, 1});
  pool.limit_moves(0);
  REQUIRE(pool.move());
  pool.pass_with({{1, 1}, {2, 0}}, 301'000);
  CHECK(pool.granted_nodes() == "n1 0>n2");
  CHECK(pool.grant(pool.holder)->moves[0].to.lease.serial() == 3);
  // The first node's tokens are those that the order makes void, whichever order it answers.
  CHECK(pool.grant(pool.holder)->servers[0].lease.serial() == 2);
  CHECK(pool.grant(pool.holder)->servers[0].lease.expires_ms() > pool.now + 500'000);
  CHECK(pool.orders(pool.nodes[1]).move(0).serial() == 2);
  pool.core->client_disconnected(pool.holder, pool.now);
  pool.settle();
  pool.core->resume(pool.holder = 900, "a", pool.lease, pool.now);
  pool.settle();
  CHECK(pool.granted_nodes() == "n1 0>n2");
}

TEST_CASE("a move does not lengthen the hold time of a disconnected client") {
  MovingPool pool({1, 1});
  pool.core->client_disconnected(pool.holder, pool.now);
  REQUIRE(pool.move());
  CHECK(pool.state().hold_until_ms() == pool.now + 30'000);
  pool.pass_with({{1, 1}, {2, 0}}, 31'000);
  CHECK(pool.state().end() == pool.core->view_lease(pool.lease)->end());
  CHECK(pool.state().ending());
  CHECK(pool.told_to_end(1));
  CHECK(pool.told_to_end(2));
}

TEST_CASE("the holder keeps the order of its devices when one part of a lease moves") {
  MovingPool pool({1, 1, 2}, ask(2));
  REQUIRE(pool.granted_nodes() == "n1 n2");
  CHECK(
      pool.move().error().message.ends_with("it is on several nodes (n1, n2): say which one it leaves "
                                            "(--from)"));
  CHECK(pool.move("n3", "n3").error().message.ends_with("it is not on node 'n3', but on n1, n2"));
  REQUIRE(pool.move("", "n1"));
  CHECK(pool.granted_nodes() == "n1 n2 0>n3");
  pool.report_on(2, 1);
  pool.report_on(1, 0);
  CHECK(pool.granted_nodes() == "n3 n2");
  // The second part may follow, but not to the node that the first one is on.
  CHECK(!pool.move("n3", "n2"));
  pool.add_node(4, 104, 1);
  REQUIRE(pool.move("", "n2"));
  CHECK(pool.granted_nodes() == "n3 n2 1>n1");
  pool.report_on(2, 0);
  CHECK(pool.granted_nodes() == "n3 n1");
  CHECK(pool.counted_milli() == 2000);
}

TEST_CASE("a quota that has no room for a second lease allows to move the first one") {
  MovingPool pool({1, 1}, ask(1, 500));
  pool::TenantQuota quota;
  quota.set_compute_milli(500), quota.set_memory_bytes(8 * kGiB), quota.set_leases(1);
  REQUIRE(pool.core->set_quota("a", quota, pool.now));
  REQUIRE(pool.move());
  pool.report_on(1, 0);
  CHECK(pool.granted_nodes() == "n2");
  CHECK(!pool.grant(pool.request(ask(1, 500))));
}

TEST_CASE("a move that takes too long is turned round") {
  MovingPool pool({1, 1});
  REQUIRE(pool.move());
  pool.pass_with({{1, 2}, {2, 1}}, 59'000);
  CHECK(pool.ordered(1) == "tcp://10.0.0.2:9700");
  pool.report_on(1, 1, "an array cannot move\n");
  pool.pass(1000);
  pool.report_on(2, 1);
  CHECK(pool.ordered(1).empty());
  CHECK(pool.ordered(2) == "tcp://10.0.0.1:9700");
  const std::string reason = "it did not end within 60 s: an array cannot move?";
  CHECK(pool.reason_of("lease_move_failed") == reason);
  REQUIRE(pool.state().moves_size() == 2);
  CHECK(pool.state().moves(0).state() == pool::LeaseMove::FAILED);
  CHECK(pool.state().moves(1).state() == pool::LeaseMove::BACK);
  CHECK(pool.state().moves(1).from() == "n2");
  CHECK(pool.state().moves(1).to() == "n1");
  CHECK(pool.state().moves(1).reason() == reason);
  CHECK(!pool.move());
  // There is no time limit, and the holder keeps the token with which its programs are still there.
  pool.pass_with({{1, 1}, {2, 1}}, 301'000);
  CHECK(pool.granted_nodes() == "n1 0>n2");
  CHECK(pool.leased_on(2) == 1000);
  CHECK(pool.counted_milli() == 1000);
  pool.report_on(2, 0);
  CHECK(pool.granted_nodes() == "n1");
  CHECK(pool.leased_on(1) == 1000);
  CHECK(pool.leased_on(2) == 0);
  CHECK(pool.ordered(2).empty());
  CHECK(pool.core->view_pool().counters().moves_failed() == 1);
  REQUIRE(pool.state().moves_size() == 1);
  CHECK(pool.state().moves(0).reason() == reason);
  finish(pool, pool.holder, pool.nodes[1]);
  CHECK(pool.leased_milli() == 0);
}

TEST_CASE("a node that has let a lease go when the move is turned round gets it back with later tokens") {
  MovingPool pool({1, 1});
  REQUIRE(pool.move());
  pool.pass_with({{1, 1}, {2, 1}}, 60'000);
  REQUIRE(pool.ordered(2) == "tcp://10.0.0.1:9700");
  pool.report_on(1, 0);  // sent before the order had been taken back; tokens up to serial 2 are void there
  CHECK(pool.granted_nodes() == "n1 0>n2");
  CHECK(pool.grant(pool.holder)->servers[0].lease.serial() == 3);
  CHECK(pool.leased_milli() == 2000);
  CHECK(!pool.state().ending());
  CHECK(pool.orders(pool.nodes[2]).move(0).serial() == 3);
  pool.report_on(2, 0);
  CHECK(pool.granted_nodes() == "n1");
  CHECK(pool.grant(pool.holder)->servers[0].lease.serial() == 4);
  CHECK(pool.leased_milli() == 1000);
}

TEST_CASE("a move is not turned round while its end may be unknown") {
  MovingPool pool({1, 1});
  SECTION("the node is silent") {
    REQUIRE(pool.move());
    pool.pass_with({{1, 1}, {2, 1}}, 50'000);
    pool.pass_with({{2, 1}}, 15'000);
    CHECK(pool.state().moves(0).state() == pool::LeaseMove::MOVING);
    // It is back and gets the order once more before the move is turned round.
    pool.add_node(1, 100, 1);
    CHECK(pool.ordered(1) == "tcp://10.0.0.2:9700");
    SECTION("its answer had been lost") {
      pool.report_on(1, 0);
      CHECK(pool.granted_nodes() == "n2");
      CHECK(pool.leased_on(1) == 0);
    }
    SECTION("it has not moved the lease") {
      pool.pass_with({{1, 1}, {2, 1}}, 6'000);
      CHECK(pool.state().moves(0).state() == pool::LeaseMove::FAILED);
    }
  }
  SECTION("the scheduler was suspended") {
    REQUIRE(pool.move());
    pool.suspend_for(120'000);
    pool.report_on(1, 1);
    pool.pass_with({{1, 1}, {2, 1}}, 50'000);
    CHECK(pool.state().moves(0).state() == pool::LeaseMove::MOVING);
  }
  SECTION("the policy has no limit") {
    pool.limit_moves(0);
    REQUIRE(pool.move());
    pool.pass_with({{1, 1}, {2, 1}}, 120'000);
    CHECK(pool.state().moves(0).state() == pool::LeaseMove::MOVING);
    pool.limit_moves(90'000);  // counts from the start
    pool.pass(200);
    CHECK(pool.state().moves(0).state() == pool::LeaseMove::FAILED);
  }
}

TEST_CASE("a lease returns to a node with tokens that are later than those it left with") {
  MovingPool pool({1, 1});
  uint64_t serial = 1;
  for (const uint64_t from : {1, 2, 1, 2}) {
    REQUIRE(pool.move());
    CHECK(pool.orders(pool.nodes[from]).move(0).serial() == ++serial);
    // A late answer to the order with which it left this node the last time.
    if (serial > 3) {
      pool.report_on(3 - from, 0);
      CHECK(pool.leased_milli() == 2000);
      CHECK(pool.state().moves_size() == 1);
    }
    pool.report_on(from, 0);
    CHECK(pool.grant(pool.holder)->servers[0].lease.serial() == ++serial);
    CHECK(pool.leased_on(3 - from) == 1000);
    if (serial > 3) {
      pool.report_on(3 - from, 0);
      CHECK(!pool.state().ending());
    }
  }
  finish(pool, pool.holder, pool.nodes[1]);
  CHECK(pool.leased_milli() == 0);
}

TEST_CASE("a lease that cannot move is refused with the reason") {
  MovingPool pool({1, 1, 1});
  const auto refused = [&](const std::string& why, const std::string& to = "") {
    const auto moved = pool.move(to);
    REQUIRE(!moved);
    CHECK(moved.error().code == ErrorCode::invalid);
    CHECK(moved.error().message ==
          "cannot move lease " + lease::hexadecimal(pool.lease).substr(0, 8) + ": " + why);
  };
  CHECK(pool.core->move("ffffffff", "", "", pool.now).error().code == ErrorCode::unavailable);
  CHECK(pool.move("n9").error().message == "unknown node 'n9'");
  refused("node 'n1': has a part of the lease already", "n1");
  REQUIRE(pool.core->drain("n2", "new fans", false, {}, pool.now));
  refused("node 'n2': is drained (new fans)", "n2");
  REQUIRE(pool.grant(pool.request(ask(1))));
  refused("node 'n3': has no room now for 1 GPU of model A100 with at least 16.0 GiB", "n3");
  refused(
      "no other node can take 1 GPU of model A100 with at least 16.0 GiB; n2: is drained (new fans); n3: "
      "has no room now for 1 GPU of model A100 with at least 16.0 GiB");
  REQUIRE(pool.core->undrain("n2", pool.now));
  REQUIRE(pool.move());
  refused("it is moving from node 'n1' to node 'n2' already", "n3");
  REQUIRE(pool.core->evict(lease::hexadecimal(pool.lease), "a reason", 5000, pool.now));
  refused("it is ending: a reason");
}

TEST_CASE("a lease moves only to as many GPUs of the same model and at least the same size") {
  MovingPool pool({2}, ask(2));
  pool.add_node(2, 102, 1);
  pool.add_node(3, 103, 2, 8 * kGiB);
  pool::NodeReport other = first_report(4, 104, 2);
  other.mutable_inventory()->mutable_gpus(0)->set_model("L4");
  other.set_now_ms(pool.now);
  pool.core->register_node(pool.nodes[4] = ++pool.streams, other, pool.now);
  pool.settle();
  for (const char* const node : {"n2", "n3", "n4"}) {
    INFO(node);
    CHECK(pool.move(node).error().message.ends_with(
        "does not have 2 GPUs of model A100 with at least 16.0 GiB"));
  }
  CHECK(!pool.move());
  pool.add_node(5, 105, 2, 32 * kGiB);
  REQUIRE(pool.move());
  CHECK(pool.granted_nodes() == "n1 0>n5");
  const lease::Lease& token = pool.grant(pool.holder)->moves[0].to.lease;
  REQUIRE(token.shares_size() == 2);
  CHECK(token.shares(0).gpu_uuid() != token.shares(1).gpu_uuid());
  CHECK(token.shares(1).memory_bytes() == 16 * kGiB);  // the same amounts
}

TEST_CASE("CPUs and host memory move with the lease") {
  pool::Request wish = ask(1, 100);
  wish.set_cpu_milli(12'000);
  MovingPool pool({1, 1}, wish);
  const Stream beside = pool.request(wish);
  REQUIRE(TestPool::where(*pool.grant(beside)) == "n2:0");
  CHECK(pool.move().error().message.ends_with("n2: has no room now for its CPUs and host memory"));
  finish(pool, beside, pool.nodes[2]);
  REQUIRE(pool.move());
  CHECK(pool.core->view_node("n2")->cpu_milli_leased() == 12'000);
  pool.report_on(1, 0);
  CHECK(pool.core->view_node("n1")->cpu_milli_leased() == 0);
}

TEST_CASE("a lease keeps apart from others while it moves, and others from it") {
  pool::Request apart = ask(1, 100);
  apart.add_labels("web"), apart.add_apart_from("web");
  MovingPool pool({2, 2, 2}, apart);
  const Stream second = pool.request(apart);
  REQUIRE(TestPool::where(*pool.grant(second)) == "n2:0");
  CHECK(pool.move("n2").error().message.ends_with("has a lease that this one must not share a host with"));
  REQUIRE(pool.move());
  CHECK(pool.granted_nodes() == "n1 0>n3");
  const Stream third = pool.request(apart);
  CHECK(!pool.grant(third));  // until the lease has left n1
  pool.report_on(1, 0);
  REQUIRE(pool.grant(third));
  CHECK(TestPool::where(*pool.grant(third)) == "n1:0");
}

TEST_CASE("GPUs that are reserved for the head of the queue are not taken by a move") {
  MovingPool pool({1, 2, 1});
  REQUIRE(TestPool::where(*pool.grant(pool.request(ask(1)))) == "n2:0");
  pool::Request both = ask(2);
  both.set_one_host(true);
  REQUIRE(!pool.grant(pool.request(both)));
  CHECK(!pool.move("n2"));
  CHECK(pool.move("n3"));
}
