// Tests of the reasons for waiting and refused requests, and of `pool-admin why`.
#include "tests/scheduler/core/pool.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::scheduler;

TEST_CASE("an impossible request is refused with a reason after the nodes had time to register") {
  TestPool pool;
  const Stream early = pool.request(ask(3));
  CHECK(!pool.last_message<Refusal>(early));
  pool.pass(1000);
  REQUIRE(pool.last_message<QueuePlace>(early));
  CHECK(pool.last_message<QueuePlace>(early)->why ==
        "cannot place 3 GPUs: no GPU fits; the pool has no GPUs: start poold with --pool-scheduler on a GPU "
        "host; the scheduler "
        "has just started and waits 10 s for more nodes to register before it refuses the request");
  const Stream node = pool.register_node(1, 1, 2);
  for (int i = 0; i < 11; ++i) pool.pass(1000), pool.report(node);
  REQUIRE(pool.last_message<Refusal>(early));
  CHECK(pool.last_message<Refusal>(early)->kind == Refusal::Kind::invalid);
  CHECK(pool.last_message<Refusal>(early)->reason ==
        "cannot place 3 GPUs: at most 2 GPUs fit; the pool has 2 GPUs on 1 host: 2 x A100 16.0 GiB");
  pool::Request model = ask(1);
  model.add_models("B200");
  CHECK(pool.last_message<Refusal>(pool.request(model))->reason ==
        "cannot place 1 GPU of model B200: no GPU fits; the pool has 2 GPUs on 1 host: 2 x A100 16.0 GiB");
  CHECK(pool.last_message<Refusal>(pool.request(ask(1, 10, 17 * kGiB))));
  pool::Request processors = ask(1);
  processors.set_cpu_milli(17'000);
  CHECK(pool.last_message<Refusal>(pool.request(processors))->reason ==
        "cannot place 1 GPU and 17 CPUs: the hosts with suitable GPUs do not offer these CPUs or this memory "
        "(poold --pool-cpu-milli, --pool-host-memory)");
  CHECK(pool.last_message<Refusal>(pool.request(ask(0))));
  CHECK(pool.last_message<Refusal>(pool.request(ask(1, 1001))));
  // Requests wait for GPUs that are leased or drained.
  REQUIRE(pool.core->drain("n1", "", false, {}, pool.now));
  const Stream waits = pool.request(ask(2));
  CHECK(!pool.last_message<Refusal>(waits));
  REQUIRE(pool.core->undrain("n1", pool.now));
  pool.settle();
  CHECK(pool.grant(waits));
}

TEST_CASE(
    "a waiting request is refused like a new one once its node is removed, not while the node is lost") {
  TestPool pool;
  const Stream one = pool.register_node(1, 1, 1);
  const Stream two = pool.register_node(2, 2, 1);
  pool.pass(11'000), pool.report(one), pool.report(two);
  const Stream runs = pool.request(ask(1));
  const Stream large = pool.request(ask(2));
  const Stream small = pool.request(ask(1));
  CHECK(!pool.grant(small));
  pool.core->node_disconnected(two, pool.now);
  for (int i = 0; i < 40; ++i) pool.pass(1000), pool.report(one);
  REQUIRE(pool.core->view_node("n2")->condition() == pool::NodeState::LOST);
  CHECK(!pool.last_message<Refusal>(large));
  REQUIRE(pool.core->remove_node("n2", pool.now));
  pool.settle();
  pool.pass(1000);
  REQUIRE(pool.last_message<Refusal>(large));
  CHECK(pool.last_message<Refusal>(large)->kind == Refusal::Kind::invalid);
  CHECK(pool.last_message<Refusal>(large)->reason ==
        "cannot place 2 GPUs: at most 1 GPU fits; the pool has 1 GPU on 1 host: 1 x A100 16.0 GiB");
  CHECK(pool.count("request_refused") == 1);
  CHECK(pool.last_message<Refusal>(large)->reason ==
        pool.last_message<Refusal>(pool.request(ask(2)))->reason);
  CHECK(!pool.last_message<Refusal>(small));
  CHECK(pool.core->tenants().at("a").waiting == 1);
  finish(pool, runs, one);
  CHECK(pool.grant(small));
}

TEST_CASE("a waiting request is refused once its node was started anew with fewer GPUs") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 2);
  pool.pass(11'000), pool.report(node);
  CHECK(pool.grant(pool.request(ask(1))));
  const Stream both = pool.request(ask(2));
  pool.core->node_disconnected(node, pool.now);
  pool.register_node(1, 2, 1);
  pool.pass(1000);
  REQUIRE(pool.last_message<Refusal>(both));
  CHECK(pool.last_message<Refusal>(both)->reason == pool.last_message<Refusal>(pool.request(ask(2)))->reason);
}

TEST_CASE("a waiting request that a new quota forbids is refused and does not block its tenant") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 4);
  pool.pass(11'000), pool.report(node);
  const Stream runs = pool.request(ask(4));
  REQUIRE(pool.grant(runs));
  const Stream large = pool.request(ask(4)), small = pool.request(ask(1));
  pool::TenantQuota changes;
  changes.set_compute_milli(2000);
  REQUIRE(pool.core->set_quota("a", changes, pool.now));
  pool.pass(1000), pool.report(node);
  REQUIRE(pool.last_message<Refusal>(large));
  CHECK(pool.last_message<Refusal>(large)->reason ==
        pool.last_message<Refusal>(pool.request(ask(4)))->reason);
  CHECK(!pool.last_message<Refusal>(small));
  finish(pool, runs, node);
  CHECK(pool.grant(small));
}

TEST_CASE("a request keeps waiting for a host that registered under a new name") {
  TestPool pool;
  const Stream one = pool.register_node(1, 1, 1), two = pool.register_node(2, 2, 1);
  pool.pass(11'000), pool.report(one), pool.report(two);
  REQUIRE(pool.grant(pool.request(ask(1))));
  const Stream both = pool.request(ask(2));
  pool.core->node_disconnected(two, pool.now);
  pool::NodeReport again = first_report(9, 9, 1, 16 * kGiB);
  again.mutable_inventory()->mutable_gpus(0)->set_uuid(
      first_report(2, 2, 1, 16 * kGiB).inventory().gpus(0).uuid());
  const Stream nine = ++pool.streams;
  pool.core->register_node(nine, again, pool.now);
  pool.settle();
  REQUIRE(!pool.core->view_node("n9")->gpus(0).withheld_because().empty());  // n2 claims the same GPU
  for (int i = 0; i < 40; ++i) pool.pass(1000), pool.report(one), pool.report(nine);
  CHECK(!pool.last_message<Refusal>(both));
  CHECK(pool.last_message<Refusal>(pool.request(ask(2))));
  REQUIRE(pool.core->remove_node("n2", pool.now));
  pool.settle();
  pool.pass(1000), pool.report(one), pool.report(nine);
  CHECK(!pool.last_message<Refusal>(both));
  CHECK(!pool.last_message<Refusal>(pool.request(ask(2))));
}

TEST_CASE("explain works when the node that is reserved for the next request has just registered again") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 2);
  pool.pass(11'000), pool.report(node);
  REQUIRE(pool.grant(pool.request(ask(1))));
  pool.request(ask(2));
  pool.settle();
  pool.core->node_disconnected(node, pool.now);
  pool.core->register_node(++pool.streams, first_report(1, 2, 2, 16 * kGiB), pool.now);
  CHECK(pool.core->why("q2", pool.now));
}

TEST_CASE("a refusal lists the most frequent kinds of GPUs that the pool has") {
  TestPool pool;
  for (uint64_t node = 1; node <= 6; ++node) pool.register_node(node, node, node == 3 ? 2 : 1, node * kGiB);
  pool.pass(11'000);
  CHECK(pool.last_message<Refusal>(pool.request(ask(8)))->reason ==
        "cannot place 8 GPUs: at most 7 GPUs fit; the pool has 7 GPUs on 6 hosts: 2 x A100 3.0 GiB, 1 x A100 "
        "1.0 GiB, 1 x A100 2.0 GiB, 1 x A100 4.0 GiB and 2 more kinds");
}

TEST_CASE("a request behind another one of its tenant names that one") {
  TestPool pool;
  pool.tenants[0].quota.set_leases(1);
  pool.core->configure(pool.tenants, pool.prices, pool.now);
  const Stream node = pool.register_node(1, 1, 4);
  const Stream runs = pool.request(ask(1));
  const Stream first = pool.request(ask(1));
  const Stream second = pool.request(ask(1));
  pool.request(ask(1));
  CHECK(pool.core->why("q2", pool.now)->at(2) ==
        "waits for quota of tenant 'a', in use: 1 of 1 lease, 1 GPU, 16.0 GiB of GPU memory");
  for (const std::string id : {"q3", "q4"}) {
    CHECK(pool.core->why(id, pool.now)->at(2) ==
          "waits behind request q2 of the same tenant, which waits for quota of tenant 'a', in use: 1 of 1 "
          "lease, 1 GPU, 16.0 GiB of GPU memory");
  }
  pool.core->client_disconnected(first, pool.now);
  pool.settle();
  CHECK(pool.core->why("q3", pool.now)->at(2).starts_with("waits for quota of tenant"));
  CHECK(pool.core->why("q4", pool.now)->at(2).starts_with("waits behind request q3 "));
  finish(pool, runs, node);
  CHECK(pool.grant(second));
}

TEST_CASE("the reason names the request that GPUs are reserved for") {
  TestPool pool;
  pool.register_node(1, 1, 2);
  CHECK(pool.grant(pool.request(ask(1))));
  pool.request(ask(2));
  pool.request(ask(1));
  CHECK(pool.core->why("q3", pool.now)->at(2) ==
        "waits for 1 GPU: 0 of 2 suitable GPUs are free; 1 is reserved for request q2, which is ahead in the "
        "queue");
}

TEST_CASE("a request that closed hosts keep waiting names each and its cause") {
  TestPool pool;
  for (uint64_t node = 1; node <= 4; ++node) pool.register_node(node, node, 1);
  pool.pass(11'000);
  REQUIRE(pool.core->drain("n1", "new disks", false, {}, pool.now));
  pool.register_node(2, 12, 1);
  pool.pass(7'000);  // all nodes are silent
  const auto why = [&] { return pool.core->why("q1", pool.now)->at(2); };
  pool.request(ask(1));
  CHECK(why() ==
        "waits for 1 GPU: 0 can be leased now; n1 is silent (heartbeats missing), n2 is silent (heartbeats "
        "missing), "
        "n3 is silent (heartbeats missing), n4 is silent (heartbeats missing)");
  pool.pass(30'000);
  const Stream drained = pool.register_node(1, 21, 1);
  CHECK(
      why().starts_with("waits for 1 GPU: 0 can be leased now; n1 is drained (new disks), n2 is lost (no "
                        "heartbeat for too long), n3 is lost"));
  pool::NodeReport not_ready;
  not_ready.set_not_ready_because("its GPU has failed");
  not_ready.set_now_ms(pool.now);
  REQUIRE(pool.core->undrain("n1", pool.now));
  pool.core->report(drained, not_ready, pool.now);
  CHECK(why().find("; n1 is not-ready (its GPU has failed), n2 is lost") != std::string::npos);
  pool.register_node(5, 5, 4, 2 * kGiB);  // too small
  pool::Request large = ask(1, 1000, 3 * kGiB);
  pool.request(large);
  CHECK(pool.core->why("q2", pool.now)->at(2).find("n5") == std::string::npos);
}

TEST_CASE("a changed reason is sent to the waiting client and to the queue view") {
  TestPool pool;
  std::vector<Stream> nodes{pool.register_node(1, 1, 1), pool.register_node(2, 2, 1)};
  pool.pass(11'000);
  const auto pass = [&](int seconds) {
    for (int i = 0; i < seconds; ++i) {
      pool.pass(1000);
      for (const Stream node : nodes) pool.report(node);
    }
  };
  pass(1);
  CHECK(pool.grant(pool.request(ask(1))));
  CHECK(pool.grant(pool.request(ask(1))));
  Stream waits = 0;
  // Checks that the client and the queue have the same reason as `why`.
  const auto check_reason = [&](const std::string& end) {
    pool::PoolSnapshot seen;
    pool.core->view_queue(*seen.mutable_waiting());
    const std::string why = pool.core->why(seen.waiting(0).id(), pool.now)->at(2);
    CHECK(why.ends_with(end));
    CHECK(seen.waiting(0).why() == why);
    REQUIRE(pool.last_message<QueuePlace>(waits));
    CHECK(pool.last_message<QueuePlace>(waits)->why == why);
  };
  SECTION("silent, lost") {
    waits = pool.request(ask(2));
    nodes.pop_back();
    pass(10);
    check_reason("n2 is silent (heartbeats missing)");
    pass(25);
    check_reason("n2 is lost (no heartbeat for too long)");
  }
  SECTION("drained for another reason") {
    waits = pool.request(ask(2));
    REQUIRE(pool.core->drain("n2", "new disks", false, {}, pool.now));
    pass(2);
    check_reason("n2 is drained (new disks)");
    REQUIRE(pool.core->drain("n2", "new fans", false, {}, pool.now));
    pass(2);
    check_reason("n2 is drained (new fans)");
  }
  SECTION("another GPU is kept") {
    waits = pool.request(ask(1));
    pass(2);
    check_reason("1 is reserved for it on n1");
    nodes.erase(nodes.begin());
    pass(10);
    check_reason("1 is reserved for it on n2");
  }
}

TEST_CASE("more closed hosts than fit a line are counted") {
  TestPool pool;
  for (uint64_t node = 1; node <= 7; ++node) pool.register_node(node, node, 1);
  for (uint64_t node = 1; node <= 7; ++node)
    REQUIRE(pool.core->drain("n" + std::to_string(node), "", false, {}, pool.now));
  pool.request(ask(1));
  CHECK(pool.core->why("q1", pool.now)->at(2) ==
        "waits for 1 GPU: 0 can be leased now; n1 is drained, n2 is drained, n3 is drained, n4 is drained "
        "and 3 more");
}

TEST_CASE("the reason names a host that anti-affinity excludes") {
  TestPool pool;
  pool.register_node(1, 1, 2);
  pool::Request request = ask(1);
  request.add_labels("db");
  request.add_apart_from("db");
  CHECK(pool.grant(pool.request(request)));
  pool.request(request);
  CHECK(pool.core->why("q2", pool.now)->at(2) ==
        "waits for 1 GPU: 0 can be leased now; n1 has a lease that the request must not share a host with");
}

TEST_CASE("explain finds a granted request by its id and shows its lease") {
  TestPool pool;
  pool.register_node(1, 1, 1);
  pool::Request request = ask(1);
  request.set_program("train");
  request.set_host("ws-7");
  const Stream holder = pool.request(request);
  const std::string lease = lease::hexadecimal(pool.grant(holder)->lease);
  const std::vector<std::string> held{"granted; held by train on ws-7", "on node 'n1': 1 GPU, 0 sessions"};
  CHECK(*pool.core->why(lease, pool.now) == held);
  const auto by_request = pool.core->why("q1", pool.now);
  REQUIRE(by_request);
  CHECK(by_request->at(0) == "granted: lease " + lease);
  CHECK(by_request->at(1) == held[0]);
  pool.core->client_disconnected(holder, pool.now);
  CHECK(pool.core->why(lease, pool.now)->at(0) ==
        "train on ws-7 is disconnected from the scheduler; the lease is held for another 30 s");
  CHECK(pool.core->why("q2", pool.now).error().message.starts_with("no request 'q2' is waiting"));
}

TEST_CASE("log lines about refused requests and nodes are bounded") {
  TestPool pool;
  pool::Request request = ask(0);
  request.set_program(std::string(1 << 20, 'p'));
  request.set_host(std::string(1 << 20, '\x01'));
  pool.request(request);
  pool::NodeReport report;
  report.mutable_inventory()->set_node(std::string(1 << 20, '"'));
  pool.core->register_node(4711, report, pool.now);
  pool.settle();
  size_t refusals = 0;
  for (const Note& note : pool.published.notes) {
    size_t bytes = 0;
    for (const auto& [key, value] : note.fields) bytes += value.size();
    CHECK(bytes <= 300);
    refusals += std::string(note.event).ends_with("_refused") ? 1 : 0;
  }
  CHECK(refusals == 2);
}

TEST_CASE("explain finds an ended lease by its id or request and shows the reason") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 1);
  const Stream holder = pool.request(ask(1));
  const std::string lease = lease::hexadecimal(pool.grant(holder)->lease);
  finish(pool, holder, node);
  pool.pass(3000);
  const std::vector<std::string> over{"lease " + lease + " has ended: RELEASED, released by the client",
                                      "it ended 3 s ago"};
  for (const std::string& id : {lease, lease.substr(0, 8), std::string("q1")}) {
    const auto why = pool.core->why(id, pool.now);
    REQUIRE(why);
    CHECK(*why == over);
  }
  CHECK(!pool.core->why("", pool.now));
  // Ended leases are not stored.
  pool.start();
  CHECK(pool.core->why(lease, pool.now).error().message ==
        "unknown lease '" + lease + "': it was never granted, or has ended");
}

TEST_CASE("waiting clients get their place and reason and a ticket keeps the place") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 1);
  const Stream first = pool.request(ask(1));
  const Stream two = pool.request(ask(1));
  pool.pass(200);
  const Stream three = pool.request(ask(1));
  pool.pass(1200), pool.report(node);
  REQUIRE(pool.last_message<QueuePlace>(two));
  CHECK(pool.last_message<QueuePlace>(two)->place == 1);
  CHECK(pool.last_message<QueuePlace>(two)->waiting == 2);
  CHECK(pool.last_message<QueuePlace>(two)->why ==
        "waits for 1 GPU: 0 of 1 suitable GPUs are free; it is first in the queue, and 1 is reserved for it "
        "on n1");
  CHECK(pool.last_message<QueuePlace>(three)->place == 2);
  const Time arrived = pool.last_message<QueuePlace>(two)->arrived;
  pool.core->client_disconnected(two, pool.now);
  pool.settle();
  const Stream again = pool.request(ask(1), "a", arrived);
  finish(pool, first, node);
  // The request that became the head meanwhile stays the head.
  CHECK(pool.grant(three));
  finish(pool, three, node);
  CHECK(pool.grant(again));
}
