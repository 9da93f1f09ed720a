// Tests of the core's scheduling: priorities, fairness, requests for several GPUs, backfill, preemption,
// quotas.
#include "tests/scheduler/core/pool.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::scheduler;

namespace {

pool::Request with(pool::Request request, lease::Priority priority) {
  request.set_priority(priority);
  return request;
}

}  // namespace

TEST_CASE("a higher priority is served first") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 1);
  const Stream first = pool.request(ask(1));
  const Stream low = pool.request(with(ask(1), lease::BEST_EFFORT));
  const Stream middle = pool.request(ask(1));
  const Stream high = pool.request(with(ask(1), lease::LATENCY_CRITICAL));
  finish(pool, first, node);
  CHECK(pool.grant(high));
  finish(pool, high, node);
  CHECK(pool.grant(middle));
  finish(pool, middle, node);
  CHECK(pool.grant(low));
}

TEST_CASE("tenants share a contended pool by weight") {
  TestPool pool;
  pool.tenants[0].quota.set_weight(3);
  pool.core->configure(pool.tenants, pool.prices, pool.now);
  for (int i = 0; i < 8; ++i) {
    pool.core->request(++pool.streams, "a", ask(1), {}, pool.now);
    pool.core->request(++pool.streams, "b", ask(1), {}, pool.now);
  }
  pool.register_node(1, 1, 8);
  // Order by weighted shares: a (0, older), b (0), a (1/24), a (2/24), then a at 3/24 and b at 1/8 tie: the
  // older request, ...
  pool::PoolSnapshot seen;
  pool.core->view_tenants(*seen.mutable_tenants(), pool.now);
  CHECK(seen.tenants(0).leases() == 6);
  CHECK(seen.tenants(1).leases() == 2);
  CHECK(seen.tenants(0).dominant_share() == 0.75);
}

TEST_CASE("fair sharing compares each tenant's dominant share of compute or memory") {
  TestPool pool;
  pool.register_node(1, 1, 2, 10 * kGiB);
  CHECK(pool.grant(pool.request(ask(1, 100, 8 * kGiB), "a")));  // 0.05 of the compute, 0.4 of the memory
  CHECK(pool.grant(pool.request(ask(1, 700, kGiB), "b")));      // 0.35 of the compute
  const Stream a = pool.request(ask(1, 300, kGiB), "a"), b = pool.request(ask(1, 300, kGiB), "b");
  CHECK(pool.grant(a));
  CHECK(pool.grant(b));  // both fit
  pool::PoolSnapshot seen;
  pool.core->view_tenants(*seen.mutable_tenants(), pool.now);
  CHECK(seen.tenants(0).dominant_share() == Approx(0.45));
  CHECK(seen.tenants(1).dominant_share() == Approx(0.5));
}

TEST_CASE("several GPUs are granted together or not at all") {
  TestPool pool;
  const Stream one = pool.register_node(1, 1, 2);
  const Stream small = pool.request(ask(1));
  pool.register_node(2, 2, 1);
  const Stream gang = pool.request(ask(3));
  CHECK(!pool.grant(gang));
  CHECK(pool.leased_milli() == 1000);
  finish(pool, small, one);
  REQUIRE(pool.grant(gang));
  CHECK(TestPool::where(*pool.grant(gang)) == "n1:0,1 n2:0");
}

TEST_CASE("all GPUs are on one host if the request demands it") {
  TestPool pool;
  pool.register_node(1, 1, 2);
  pool.register_node(2, 2, 4);
  pool::Request request = ask(3);
  request.set_one_host(true);
  CHECK(TestPool::where(*pool.grant(pool.request(request))) == "n2:0,1,2");
}

TEST_CASE("small requests are backfilled without using the reservation of a large one") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 4);
  std::vector<Stream> running;
  for (int i = 0; i < 3; ++i) running.push_back(pool.request(ask(1), "a"));
  const Stream large = pool.request(ask(2), "b");  // GPU 3 and one of the others are reserved for it
  std::vector<Stream> small;
  for (int i = 0; i < 3; ++i) small.push_back(pool.request(ask(1), "a"));
  for (const Stream one : small) CHECK(!pool.grant(one));
  pool::PoolSnapshot seen;
  pool.core->view_queue(*seen.mutable_waiting());
  CHECK(seen.waiting(0).head());
  CHECK(seen.waiting(0).tenant() == "b");
  finish(pool, running[2], node);
  CHECK(pool.grant(large));
  // The part of a GPU that the reservation does not need is granted to the requests behind it.
  const Stream half = pool.request(ask(1, 600), "b");
  CHECK(!pool.grant(half));
  finish(pool, running[0], node);
  CHECK((pool.grant(small[0]) || pool.grant(half)));
}

TEST_CASE("a temporarily closed host costs no request its place in the queue") {
  TestPool pool;
  const Stream one = pool.register_node(1, 1, 1);
  Stream two = pool.register_node(2, 2, 1);
  pool.pass(11'000), pool.report(one), pool.report(two);
  const Stream first = pool.request(ask(1)), second = pool.request(ask(1));
  const Stream large = pool.request(ask(2));
  const Stream small = pool.request(ask(1));
  const auto line = [&] {
    pool::PoolSnapshot seen;
    pool.core->view_queue(*seen.mutable_waiting());
    std::string text;
    for (const pool::Waiting& waiting : seen.waiting())
      text += (text.empty() ? "" : " ") + waiting.id() + (waiting.head() ? " (head)" : "");
    return text;
  };
  REQUIRE(line() == "q3 (head) q4");
  SECTION("drained") {
    REQUIRE(pool.core->drain("n2", "", false, {}, pool.now));
    pool.settle();
    CHECK(line() == "q3 q4 (head)");
    REQUIRE(pool.core->undrain("n2", pool.now));
    pool.settle();
  }
  SECTION("cut") {
    pool.core->node_disconnected(two, pool.now);
    pool.settle();
    CHECK(line() == "q3 q4 (head)");
    two = pool.register_node(2, 2, 1);
  }
  SECTION("drained, and the one behind is served meanwhile") {
    REQUIRE(pool.core->drain("n2", "", false, {}, pool.now));
    pool.settle();
    finish(pool, first, one);
    CHECK(pool.grant(small));
    REQUIRE(pool.core->undrain("n2", pool.now));
    pool.settle();
    CHECK(line() == "q3 (head)");
    return;
  }
  CHECK(line() == "q3 (head) q4");
  finish(pool, first, one);
  CHECK(!pool.grant(small));
  finish(pool, second, two);
  CHECK(pool.grant(large));
}

TEST_CASE("the part of a reserved GPU that the head does not need may be granted") {
  TestPool pool;
  pool.register_node(1, 1, 1, 10 * kGiB);
  CHECK(pool.grant(pool.request(ask(1, 500, kGiB))));
  const Stream head = pool.request(ask(1, 700, kGiB));
  CHECK(!pool.grant(head));
  CHECK(!pool.grant(pool.request(ask(1, 301, kGiB))));  // would leave less than 700 for the head
  CHECK(!pool.grant(pool.request(ask(1, 300, kGiB))));  // does not fit beside 500 in use and 700 reserved
}

TEST_CASE("a large request is granted despite a stream of small ones") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 4);
  std::vector<Stream> running;
  for (int i = 0; i < 4; ++i) running.push_back(pool.request(ask(1), "a"));
  const Stream large = pool.request(ask(4), "b");
  for (int round = 0; round < 8 && !pool.grant(large); ++round) {
    // One lease ends and two requests arrive, of a tenant with a smaller share than the large request would
    // give.
    running.push_back(pool.request(ask(1), "a"));
    running.push_back(pool.request(ask(1), "a"));
    for (const Stream one : running) {
      if (pool.grant(one) && !pool.last_message<pool::Ended>(one)) {
        finish(pool, one, node);
        break;
      }
    }
  }
  CHECK(pool.grant(large));
}

TEST_CASE("the latest best-effort leases are preempted and no more than needed") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 2);
  const Stream old = pool.request(with(ask(1, 500), lease::BEST_EFFORT));
  pool.pass(10), pool.report(node);
  const Stream late = pool.request(with(ask(1, 500), lease::BEST_EFFORT));
  const Stream normal = pool.request(ask(1));
  CHECK(pool.grant(normal));
  const Stream wants = pool.request(ask(1, 400), "b");
  CHECK(!pool.grant(wants));
  CHECK(!pool.last_message<pool::Ended>(old));
  REQUIRE(pool.last_message<pool::Ended>(late));
  CHECK(pool.last_message<pool::Ended>(late)->why() == pool::Ended::PREEMPTED);
  CHECK(pool.last_message<pool::Ended>(late)->at_ms() == pool.now + 30'000);
  CHECK(pool.orders(node).end(0).grace_ms() == 30'000);
  // Other requests do not get the GPU that is being freed for this one.
  const Stream other = pool.request(ask(1, 400));
  pool.report(node, {{pool.grant(late)->lease, 0}});
  CHECK(pool.grant(wants));
  CHECK(!pool.grant(other));
}

TEST_CASE("no preemption without effect or by best-effort requests or against the policy") {
  TestPool pool;
  pool.register_node(1, 1, 2);
  const Stream normal = pool.request(ask(1));
  const Stream low = pool.request(with(ask(1), lease::BEST_EFFORT));
  CHECK(pool.grant(normal));
  CHECK(pool.grant(low));
  SECTION("in vain") {
    pool.request(ask(2));
  }
  SECTION("by its like") {
    pool.request(with(ask(1), lease::BEST_EFFORT));
  }
  SECTION("policy") {
    pool::Policy policy;
    policy.set_preemption(false);
    REQUIRE(pool.core->set_policy(policy, pool.now));
    pool.request(ask(1));
  }
  CHECK(!pool.last_message<pool::Ended>(low));
}

TEST_CASE("quotas limit leases and compute and memory and queue length and priority") {
  TestPool pool;
  auto& quota = pool.tenants[0].quota;
  const auto configure = [&] { pool.core->configure(pool.tenants, pool.prices, pool.now), pool.pass(0); };
  const Stream node = pool.register_node(1, 1, 4);
  pool.pass(11'000), pool.report(node);
  SECTION("compute") {
    quota.set_compute_milli(1500);
    configure();
    const Stream one = pool.request(ask(1));
    const Stream two = pool.request(ask(1));
    const Stream small = pool.request(ask(1, 500));  // would fit, but must wait behind the previous one
    CHECK(pool.grant(one));
    CHECK(!pool.grant(two));
    CHECK(!pool.grant(small));
    CHECK(pool.grant(pool.request(ask(1), "b")));
  }
  SECTION("never") {
    quota.set_compute_milli(1500);
    configure();
    const auto refusal = pool.last_message<Refusal>(pool.request(ask(2)));
    REQUIRE(refusal);
    CHECK(refusal->kind == Refusal::Kind::invalid);
    CHECK(refusal->reason ==
          "the request for 2 GPUs exceeds the quota of tenant 'a', gpus=1.5: ask for less (--gpus, "
          "--compute, --memory, --priority), or ask an operator to raise the quota");
  }
  SECTION("memory") {
    quota.set_memory_bytes(20 * kGiB);
    configure();
    const auto refusal = pool.last_message<Refusal>(pool.request(ask(1, 500, 21 * kGiB)));
    REQUIRE(refusal);
    CHECK(refusal->reason ==
          "the request for 21GiB of GPU memory exceeds the quota of tenant 'a', memory=20GiB: ask for less "
          "(--gpus, --compute, --memory, --priority), or ask an operator to raise the quota");
    CHECK(pool.last_message<Refusal>(pool.request(ask(3, 500, 7 * kGiB)))
              ->reason.starts_with("the request for 3 x 7GiB of GPU memory exceeds"));
    const auto implied = pool.last_message<Refusal>(pool.request(ask(2)));  // implies 16 GiB per GPU
    REQUIRE(implied);
    CHECK(implied->kind == Refusal::Kind::invalid);
    CHECK(implied->reason.find("exceeds the quota of tenant 'a', memory=20GiB") != std::string::npos);
    CHECK(pool.grant(pool.request(ask(1, 500, 12 * kGiB))));
    const Stream waits = pool.request(ask(1, 500, 9 * kGiB));
    CHECK(!pool.grant(waits));
    pool.pass(1000);
    CHECK(pool.last_message<QueuePlace>(waits)->why ==
          "waits for quota of tenant 'a', in use: 1 lease, 0.5 GPU, 12.0 GiB of 20.0 GiB of GPU memory");
  }
  SECTION("leases") {
    quota.set_leases(1);
    configure();
    CHECK(pool.grant(pool.request(ask(1, 10))));
    CHECK(!pool.grant(pool.request(ask(1, 10))));
  }
  SECTION("queue") {
    quota.set_waiting(1);
    quota.set_leases(1);
    configure();
    CHECK(pool.grant(pool.request(ask(1, 10))));
    CHECK(!pool.last_message<Refusal>(pool.request(ask(1, 10))));
    const Refusal full = *pool.last_message<Refusal>(pool.request(ask(1, 10)));
    CHECK(full.kind == Refusal::Kind::exhausted);
    CHECK(full.reason == "tenant 'a' has 1 request in the queue, which is the limit of its quota");
  }
  SECTION("priority") {
    quota.set_highest_priority(lease::BEST_EFFORT);
    configure();
    const auto refusal = pool.last_message<Refusal>(pool.request(ask(1, 10)));
    REQUIRE(refusal);
    CHECK(refusal->reason ==
          "the request for priority normal exceeds the quota of tenant 'a', highest-priority=low: ask for "
          "less (--gpus, --compute, --memory, --priority), or ask an operator to raise the quota");
    CHECK(pool.grant(pool.request(with(ask(1, 10), lease::BEST_EFFORT))));
  }
}

TEST_CASE("a quota that an operator sets is stored and wins until it is cleared") {
  TestPool pool;
  pool.register_node(1, 1, 4);
  pool::TenantQuota changes;
  changes.set_leases(1);
  REQUIRE(pool.core->set_quota("a", changes, pool.now));
  pool.settle();
  pool.start();
  CHECK(pool.core->tenants().at("a").quota.leases() == 1);
  CHECK(pool.core->tenants().at("a").quota.weight() == 1);
  REQUIRE(pool.core->clear_quota("a", pool.now));
  pool.settle();
  pool.start();
  CHECK(pool.core->tenants().at("a").quota.leases() == 0);
  changes.set_weight(0);
  CHECK(!pool.core->set_quota("a", changes, pool.now));
  CHECK(!pool.core->set_quota("nobody", {}, pool.now));
}

TEST_CASE("affinity and anti-affinity labels are respected") {
  TestPool pool;
  pool.register_node(1, 1, 4);
  pool.register_node(2, 2, 4);
  pool::Request request = ask(1);
  request.add_labels("db");
  request.add_apart_from("db");
  CHECK(TestPool::where(*pool.grant(pool.request(request))) == "n1:0");
  CHECK(TestPool::where(*pool.grant(pool.request(request))) == "n2:0");
  CHECK(!pool.grant(pool.request(request)));
  CHECK(pool.grant(pool.request(request, "b")));  // labels are per tenant
  pool::Request beside = ask(1);
  beside.add_labels("web");
  CHECK(TestPool::where(*pool.grant(pool.request(beside))) == "n1:2");
  pool::Request apart = ask(1);
  apart.add_apart_from("web");
  apart.add_labels("alone");
  CHECK(TestPool::where(*pool.grant(pool.request(apart))) == "n2:1");
  pool::Request near = ask(1);
  near.add_near("alone");
  CHECK(TestPool::where(*pool.grant(pool.request(near))) == "n2:2");
  pool::Request repelled = ask(1);  // excluded from nodes with a lease whose apart_from names its label
  repelled.add_labels("web");
  CHECK(TestPool::where(*pool.grant(pool.request(repelled))) == "n1:3");
}

TEST_CASE("processors and memory of the GPUs' node are accounted for") {
  TestPool pool;
  pool.register_node(1, 1, 4);  // 16 CPUs, 64 GiB
  pool::Request request = ask(1);
  request.set_cpu_milli(9000);
  CHECK(pool.grant(pool.request(request)));
  CHECK(!pool.grant(pool.request(request)));
  request.set_cpu_milli(7000);
  request.set_host_memory_bytes(64 * kGiB);
  CHECK(!pool.grant(pool.request(request, "b", 1)));
}

TEST_CASE("a GPU larger than the tenant's memory quota is neither reserved for its request nor granted") {
  TestPool pool(GENERATE(false, true));
  pool.tenants[0].quota.set_memory_bytes(40 * kGiB);
  pool.core->configure(pool.tenants, pool.prices, pool.now);
  const Stream small = pool.register_node(1, 1, 1, 16 * kGiB);
  const Stream first = pool.request(ask(1, 600, 10 * kGiB), "b");
  REQUIRE(pool.grant(first));
  const Stream large = pool.register_node(2, 2, 1, 80 * kGiB);
  const auto pass = [&] { pool.pass(1000), pool.report(small), pool.report(large); };
  const Stream head = pool.request(ask(1), "a");  // a whole GPU with all of its memory
  CHECK(!pool.grant(head));
  pass();
  REQUIRE(pool.last_message<QueuePlace>(head));
  CHECK(pool.last_message<QueuePlace>(head)->why ==
        "waits for 1 GPU: 0 of 1 suitable GPUs are free; it is first in the queue, and 1 is reserved for it "
        "on n1");
  CHECK(pool.grant(pool.request(ask(1), "b")));  // on the other node
  finish(pool, first, small);
  pass();
  REQUIRE(pool.grant(head));
  CHECK(pool.grant(head)->servers[0].address == "tcp://10.0.0.1:9700");
  const Stream next = pool.request(ask(1, 900), "a");  // 14.4 GiB of the small GPU, 72 GiB of the large one
  pass();
  REQUIRE(pool.core->drain("n1", "", false, {}, pool.now));
  pass(), pass();
  REQUIRE(pool.last_message<QueuePlace>(next));
  CHECK(pool.last_message<QueuePlace>(next)->why.ends_with(
      "; on other GPUs it would exceed the quota of tenant 'a', in use: 16.0 GiB of memory=40GiB"));
}

TEST_CASE("several GPUs of several sizes are chosen so that their memory together is within the quota") {
  TestPool pool(GENERATE(false, true));
  pool.tenants[0].quota.set_memory_bytes(120 * kGiB);
  pool.core->configure(pool.tenants, pool.prices, pool.now);
  pool::Request two = ask(2);
  SECTION("when they are free") {
    pool.register_node(1, 1, 2, 80 * kGiB);
    pool.register_node(2, 2, 2, 16 * kGiB);
    const Stream granted = pool.request(two);
    REQUIRE(pool.grant(granted));
    CHECK(pool.leased_milli() == 2000);
  }
  SECTION("when they are waited for, on one host") {
    two.set_one_host(true);
    const Stream large = pool.register_node(1, 1, 2, 80 * kGiB);
    const Stream before = pool.request(ask(2), "b");
    REQUIRE(pool.grant(before));
    const Stream small = pool.register_node(2, 2, 2, 16 * kGiB);
    const Stream other = pool.request(ask(2), "b");
    REQUIRE(pool.grant(other));
    const Stream waits = pool.request(two);
    for (int i = 0; i < 2; ++i) pool.pass(1000), pool.report(large), pool.report(small);
    REQUIRE(pool.last_message<QueuePlace>(waits));
    CHECK(pool.last_message<QueuePlace>(waits)->why.ends_with(
        "it is first in the queue, and 2 are reserved for it on n2"));
  }
}
