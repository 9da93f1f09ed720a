// Tests of moves that make room for the head of the queue (policy `defragment`).
#include "scheduler/core/records.pb.h"
#include "tests/scheduler/core/fragmented_pool.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::scheduler;

TEST_CASE("nothing moves for a waiting request unless the policy says so") {
  FragmentedPool pool(1, {});
  const Stream gang = pool.request(on_one_host(2));
  pool.live(60);
  CHECK(pool.moving().empty());
  CHECK(!pool.grant(gang));
  pool.set_policy(defragmenting());
  pool.live(10);
  CHECK(pool.moving().size() == 1);
}

TEST_CASE("a request for several GPUs on one host is granted after one, two or three moves") {
  const auto moves = GENERATE(1u, 2u, 3u);
  INFO(moves);
  FragmentedPool pool(moves);
  const Stream gang = pool.request(on_one_host(std::max(2u, moves)), "b");
  const std::vector<LeaseId> moving = pool.moving();
  REQUIRE(moving.size() == moves);
  for (const LeaseId& lease : moving) CHECK(pool.source(lease) == 1);
  CHECK(pool.count("defragmentation_begun") == 1);
  pool.live(2);
  CHECK(!pool.grant(gang));
  // Requests behind it get none of the GPUs that become free, one after the other.
  const Stream small = pool.request(ask(1));
  for (const LeaseId& lease : moving) {
    CHECK(!pool.grant(gang));
    pool.end_move(lease);
    CHECK(!pool.grant(small));
  }
  REQUIRE(pool.grant(gang));
  CHECK(TestPool::where(*pool.grant(gang)).starts_with("n1:0,1"));
  CHECK(pool.moving().empty());
  const pool::PoolCounters counters = pool.core->view_pool().counters();
  CHECK(counters.defragmentations() == 1);
  CHECK(counters.defragmentations_granted() == 1);
  CHECK(counters.defragmentations_failed() == 0);
  CHECK(counters.defragmentation_moves() == moves);
  CHECK(counters.defragmentation_bytes() == moves * 16 * kGiB);
  CHECK(counters.moves_done() == moves);
  CHECK(pool.count("defragmentation_done") == 1);
}

TEST_CASE("the reason of the request and of the lease say what moves for it") {
  FragmentedPool pool(1);
  const Stream gang = pool.request(on_one_host(2), "b");
  const LeaseId lease = pool.moving().at(0);
  const std::string id = lease::hexadecimal(lease).substr(0, 8);
  pool.live(2);
  const std::string why =
      "waits for 2 GPUs on one host: 1 of 2 suitable GPUs is free; it is first in the queue, and 2 "
      "are reserved for it on n1; to make room for it, lease " +
      id + " moves from n1 to n2";
  CHECK(pool.last_message<QueuePlace>(gang)->why == why);
  const auto lines = pool.core->why(id, pool.now);
  REQUIRE(lines);
  CHECK(std::count(lines->begin(), lines->end(),
                   "the move makes room for 2 GPUs on one host of tenant 'b'") == 1);
}

TEST_CASE("leases that cannot move are left alone") {
  FragmentedPool pool(1, {});
  pool::Policy policy = defragmenting();
  SECTION("the holder is disconnected") {
    pool.core->client_disconnected(pool.holders.at(0), pool.now);
  }
  SECTION("a higher priority") {
    pool.leave(pool.holders.at(0));
    pool::Request high = ask(1);
    high.set_priority(lease::LATENCY_CRITICAL);
    pool.start_lease(high);
    pool.live(60);
  }
  SECTION("its move would take longer than the policy allows") {
    policy.set_move_ms(19'000);
  }
  SECTION("no other host has room") {
    REQUIRE(pool.core->drain("n2", "", false, {}, pool.now));
  }
  pool.set_policy(policy);
  const Stream gang = pool.request(on_one_host(2), "b");
  pool.live(20);
  CHECK(pool.count("defragmentation_begun") == 0);
  CHECK(!pool.grant(gang));
}

TEST_CASE("leases that have just begun are expected to end soon, and do not move") {
  FragmentedPool pool(1, {});
  pool.leave(pool.holders.at(0));
  pool.start_lease(ask(1));
  pool.set_policy(defragmenting());
  pool.request(on_one_host(2), "b");
  // A move takes 19.2 s and occupies a GPU; it pays when 2 GPUs are expected to wait for more than 28.8 s.
  pool.live(27);
  CHECK(pool.moving().empty());
  pool.live(8);
  CHECK(pool.moving().size() == 1);
}

TEST_CASE("the budget of moves and memory is kept, and has room again an hour later") {
  FragmentedPool pool(2, {});
  pool::Policy policy = defragmenting();
  SECTION("moves per hour") {
    policy.set_defragment_moves(1);
  }
  SECTION("memory per hour") {
    policy.set_defragment_bytes(31 * kGiB);
  }
  SECTION("at the same time") {
    policy.set_defragment_at_once(1);
  }
  pool.set_policy(policy);
  const Stream gang = pool.request(on_one_host(2), "b");
  pool.live(20);
  CHECK(pool.moving().empty());
  policy.set_defragment_moves(3), policy.set_defragment_bytes(48 * kGiB), policy.set_defragment_at_once(2);
  pool.set_policy(policy);
  pool.live(6);
  const std::vector<LeaseId> moving = pool.moving();
  REQUIRE(moving.size() == 2);
  for (const LeaseId& lease : moving) pool.end_move(lease);
  REQUIRE(pool.grant(gang));

  // The pool is fragmented again: two leases on n1, a free GPU on n2 and on n3. One move is left, then none.
  pool.leave(gang);
  pool.leave(pool.holders.at(0)), pool.leave(pool.holders.at(0));
  pool.start_lease(ask(1)), pool.start_lease(ask(1));
  pool.live(120);
  const Stream next = pool.request(on_one_host(2), "b");
  pool.live(20);
  CHECK(pool.moving().empty());
  // A new leader knows what was spent.
  pool.restart();
  const Stream again = pool.request(on_one_host(2), "b");
  int seconds = 0;
  for (; pool.moving().empty() && seconds < 3'600; ++seconds) pool.live(1);
  CHECK(seconds > 3'300);
  CHECK(pool.moving().size() == 2);
  CHECK(!pool.grant(again));
  CHECK(!pool.grant(next));
}

TEST_CASE("a move that fails leaves the request waiting, and the lease is not tried again") {
  FragmentedPool pool(1);
  const Stream gang = pool.request(on_one_host(2), "b");
  const LeaseId lease = pool.moving().at(0);
  pool.live(61);
  CHECK(pool.count("defragmentation_failed") == 1);
  CHECK(pool.reason_of("defragmentation_failed") ==
        "lease " + lease::hexadecimal(lease).substr(0, 8) +
            " has not left node 'n1': it did not end within 60 s: 1 session left on node 'n1'");
  CHECK(!pool.grant(gang));
  pool.end_move_back(lease);
  pool.live(30);
  CHECK(pool.moving().empty());
  CHECK(pool.leased_milli() == 2000);
  CHECK(pool.core->view_pool().counters().defragmentations_failed() == 1);
  // It is still the head, and gets the GPUs when the lease ends.
  pool.leave(pool.holders.at(0));
  CHECK(pool.grant(gang));
}

TEST_CASE("a request that leaves the queue while leases move for it frees the place") {
  FragmentedPool pool(1);
  const Stream gang = pool.request(on_one_host(2), "b");
  const LeaseId lease = pool.moving().at(0);
  const Stream small = pool.request(ask(1));
  CHECK(!pool.grant(small));
  pool.core->release(gang, pool.now);
  pool.settle();
  CHECK(pool.grant(small));
  CHECK(pool.reason_of("defragmentation_failed") == "the request has left the queue");
  pool.end_move(lease);
  CHECK(pool.leased_milli() == 3000);
  CHECK(pool.grant(pool.request(ask(1))));
  CHECK(!pool.grant(pool.request(ask(1))));
}

TEST_CASE("a lease that ends instead of moving makes room, too") {
  FragmentedPool pool(1);
  const Stream gang = pool.request(on_one_host(2), "b");
  REQUIRE(pool.moving().size() == 1);
  pool.leave(pool.holders.at(0));
  CHECK(pool.grant(gang));
}

TEST_CASE("a place that is lost is given up") {
  FragmentedPool pool(1);
  const Stream gang = pool.request(on_one_host(2), "b");
  const LeaseId lease = pool.moving().at(0);
  SECTION("drained") {
    REQUIRE(pool.core->drain("n1", "new fans", false, {}, pool.now));
    pool.settle();
    CHECK(pool.reason_of("defragmentation_failed") == "node 'n1' gets no leases now");
    pool.end_move(lease);
    CHECK(!pool.grant(gang));
    REQUIRE(pool.core->undrain("n1", pool.now));
    pool.settle();
    CHECK(pool.grant(gang));
  }
  SECTION("the other node is restarted") {
    pool.core->node_disconnected(pool.nodes[2], pool.now);
    pool.add_node(2, 200, 2);
    CHECK(pool.reason_of("defragmentation_failed") ==
          "lease " + lease::hexadecimal(lease).substr(0, 8) + " has not left node 'n1'");
    REQUIRE(pool.grant(gang));  // the lease that was there is lost
    CHECK(TestPool::where(*pool.grant(gang)) == "n2:0,1");
  }
}

TEST_CASE("the place is kept although other GPUs would be reserved without the moves") {
  FragmentedPool pool(1, {});
  pool.add_node(0, 100, 2, 8 * kGiB);  // too small for the lease, but not for the request
  pool::Request fixed = ask(1);
  fixed.set_priority(lease::LATENCY_CRITICAL);
  CHECK(TestPool::where(*pool.grant(pool.start_lease(fixed))) == "n0:0");
  pool.live(120);
  pool.set_policy(defragmenting());
  const Stream gang = pool.request(on_one_host(2), "b");
  const LeaseId lease = pool.moving().at(0);
  const Stream small = pool.request(ask(1)), second = pool.request(ask(1));
  REQUIRE(pool.grant(small));
  CHECK(TestPool::where(*pool.grant(small)) == "n0:1");
  CHECK(!pool.grant(second));
  pool.end_move(lease);
  REQUIRE(pool.grant(gang));
  CHECK(TestPool::where(*pool.grant(gang)) == "n1:0,1");
}

TEST_CASE("a place is not kept for a request whose tenant's quota is exhausted") {
  FragmentedPool pool(1, {});
  pool.add_node(0, 100, 1, 8 * kGiB);
  REQUIRE(pool.grant(pool.request(ask(1), "b")));
  pool.set_policy(defragmenting());
  const Stream gang = pool.request(on_one_host(2), "b");
  const LeaseId lease = pool.moving().at(0);
  pool::TenantQuota quota;
  quota.set_leases(1);
  REQUIRE(pool.core->set_quota("b", quota, pool.now));
  pool.settle();
  pool.end_move(lease);
  CHECK(!pool.grant(gang));
  CHECK(pool.reason_of("defragmentation_failed") ==
        "the request is not first in the queue now, or its tenant's quota is exhausted");
  CHECK(pool.grant(pool.request(ask(1))));
  CHECK(pool.grant(pool.request(ask(1))));
}

TEST_CASE("a new leader keeps the place for the request, and lets it come back") {
  FragmentedPool pool(2);
  pool::Request wish = on_one_host(2);
  wish.set_id(std::string(16, 'g'));
  pool.request(wish, "b");
  const std::vector<LeaseId> moving = pool.moving();
  REQUIRE(moving.size() == 2);
  pool.live(2);
  pool.end_move(moving[0]);
  pool.restart();
  CHECK(pool.moving() == std::vector<LeaseId>{moving[1]});
  const Stream small = pool.request(ask(1));
  pool.live(5);
  CHECK(!pool.grant(small));  // a GPU of n1 is free
  SECTION("it comes back") {
    const Stream gang = pool.request(wish, "b", pool.now - 10'000);
    pool.live(60 - 20);
    CHECK(!pool.grant(small));
    pool.end_move(moving[1]);
    REQUIRE(pool.grant(gang));
    CHECK(TestPool::where(*pool.grant(gang)) == "n1:0,1");
    CHECK(pool.core->view_pool().counters().defragmentations_granted() == 1);
    CHECK(!pool.grant(small));
  }
  SECTION("it does not") {
    pool.live(30);
    CHECK(pool.grant(small));
    CHECK(pool.reason_of("defragmentation_failed") == "the request has left the queue");
    pool.end_move(moving[1]);
    CHECK(pool.leased_milli() == 5000);
  }
  SECTION("another leader after it knows neither place nor request") {
    pool.live(30);
    pool.leave(small);
    pool.restart();
    CHECK(pool.grant(pool.request(ask(1))));
  }
}

TEST_CASE("a stored place that does not suit the request is forgotten") {
  FragmentedPool pool(1);
  pool::Request wish = on_one_host(2);
  wish.set_id(std::string(16, 'g'));
  pool.request(wish, "b");
  DefragmentationRecord record;
  REQUIRE(record.ParseFromString(pool.store.at("defragmentation")));
  REQUIRE(record.place_size() == 2);
  SECTION("a GPU twice") {
    *record.mutable_place(1) = record.place(0);
  }
  SECTION("too few GPUs") {
    record.mutable_place()->RemoveLast();
  }
  SECTION("another model") {
    record.mutable_request()->add_models("L4");
  }
  SECTION("an unknown node") {
    record.mutable_place(0)->set_node("n9");
  }
  SECTION("an invalid request") {
    record.mutable_request()->set_gpus(0);
  }
  pool.store["defragmentation"] = record.SerializeAsString();
  pool.restart();
  CHECK(pool.grant(pool.request(ask(1))));  // nothing is held
  pool.store["defragmentation"] = "\xff";
  CHECK_THROWS(pool.restart());
}

TEST_CASE("best-effort leases move rather than being preempted") {
  FragmentedPool pool(1, {});
  pool.leave(pool.holders.at(0));
  pool::Request low = ask(1);
  low.set_priority(lease::BEST_EFFORT);
  const Stream cheap = pool.start_lease(low);
  pool.live(60);
  pool::Policy policy = defragmenting();
  SECTION("on") {
    pool.set_policy(policy);
    pool.request(on_one_host(2), "b");
    CHECK(pool.moving().size() == 1);
    CHECK(!pool.last_message<pool::Ended>(cheap));
  }
  SECTION("off") {
    pool.request(on_one_host(2), "b");
    CHECK(pool.moving().empty());
    CHECK(pool.last_message<pool::Ended>(cheap));
  }
}

TEST_CASE("shares move together so that a request over several hosts gets whole GPUs") {
  FragmentedPool pool(0);
  for (uint64_t node = 1; node <= 4; ++node) pool.add_node(node, 300 + node, 1);
  for (int i = 0; i < 4; ++i) pool.start_lease(ask(1, 600));
  for (int i = 0; i < 4; ++i) pool.start_lease(ask(1, 400));
  for (int i = 0; i < 4; ++i) pool.leave(pool.holders[0]);
  pool.live(60);
  // Four GPUs with 400 thousandths each become two with 800.
  const Stream gang = pool.request(ask(2), "b");
  const std::vector<LeaseId> moving = pool.moving();
  REQUIRE(moving.size() == 2);
  for (const LeaseId& lease : moving) pool.end_move(lease);
  REQUIRE(pool.grant(gang));
  CHECK(pool.leased_milli() == 3600);
}
