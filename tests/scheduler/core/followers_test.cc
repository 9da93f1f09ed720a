// Tests of requests that get no lease of their own: checks of whether a request could be granted, and
// followers of another client's lease.
#include "tests/scheduler/core/pool.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::scheduler;

namespace {

pool::Request with_id(pool::Request request) {
  request.set_id("sixteen bytes 01");
  return request;
}

pool::Request to_follow(pool::Request request) {
  request = with_id(std::move(request));
  request.set_follow(true);
  return request;
}

pool::Request to_check(pool::Request request) {
  request.set_check_only(true);
  return request;
}

bool is_over(const TestPool& pool, Stream stream) {
  bool last = false;
  for (const ClientMessage& one : pool.published.clients) last = last || (one.stream == stream && one.last);
  return last;
}

void pass_with(TestPool& pool, Stream node, int seconds) {
  for (int i = 0; i < seconds; ++i) pool.pass(1000), pool.report(node);
}

}  // namespace

TEST_CASE("a checked request is answered and neither granted nor queued") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 2);
  pass_with(pool, node, 11);
  const Stream good = pool.request(to_check(ask(2)));
  REQUIRE(pool.last_message<pool::Ended>(good));
  CHECK(pool.last_message<pool::Ended>(good)->why() == pool::Ended::RELEASED);
  CHECK(is_over(pool, good));
  CHECK_FALSE(pool.grant(good));
  CHECK(pool.leased_milli() == 0);

  const Stream bad = pool.request(to_check(ask(3)));
  REQUIRE(pool.last_message<Refusal>(bad));
  CHECK(pool.last_message<Refusal>(bad)->kind == Refusal::Kind::invalid);
  CHECK(pool.last_message<Refusal>(bad)->reason ==
        "cannot place 3 GPUs: at most 2 GPUs fit; the pool has 2 GPUs on 1 host: 2 x A100 16.0 GiB");

  // GPUs that are taken, or a queue that is full, may be free later.
  REQUIRE(pool.grant(pool.request(ask(2))));
  pool::TenantQuota quota;
  quota.set_waiting(1);
  REQUIRE(pool.core->set_quota("a", quota, pool.now));
  REQUIRE_FALSE(pool.grant(pool.request(ask(1))));
  const Stream busy = pool.request(to_check(ask(2)));
  CHECK(pool.last_message<pool::Ended>(busy));
  CHECK_FALSE(pool.last_message<Refusal>(busy));
}

TEST_CASE("a request that its tenant's quota never allows is refused by a check") {
  TestPool pool;
  pool::TenantQuota quota;
  quota.set_compute_milli(1000);
  REQUIRE(pool.core->set_quota("a", quota, pool.now));
  const Stream stream = pool.request(to_check(ask(2)));
  REQUIRE(pool.last_message<Refusal>(stream));
  CHECK(pool.last_message<Refusal>(stream)->kind == Refusal::Kind::invalid);
}

TEST_CASE("followers get the lease of the client whose request has their id, whoever comes first") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 2);
  const Stream early = pool.request(to_follow(ask(1)));
  CHECK_FALSE(pool.grant(early));
  const Stream holder = pool.request(with_id(ask(1)));
  REQUIRE(pool.grant(holder));
  const LeaseId id = pool.grant(holder)->lease;
  REQUIRE(pool.grant(early));
  CHECK(pool.grant(early)->lease == id);
  const Stream late = pool.request(to_follow(ask(1)));
  REQUIRE(pool.grant(late));
  CHECK(pool.grant(late)->servers[0].lease.serial() == 1);
  CHECK(pool.leased_milli() == 1000);

  // Renewed tokens reach everybody, and no follower's arrival or end touches the lease.
  pass_with(pool, node, 301);
  for (const Stream stream : {early, late, holder}) CHECK(pool.grant(stream)->servers[0].lease.serial() == 2);
  pool.core->client_disconnected(late, pool.now);
  pass_with(pool, node, 40);
  CHECK(pool.core->view_lease(id)->held());
  pool.core->release(holder, pool.now);
  pool.settle();
  REQUIRE(pool.last_message<pool::Ended>(early));
  CHECK(pool.last_message<pool::Ended>(early)->at_ms() == 0);
  CHECK(is_over(pool, early));
}

TEST_CASE("a tenant's followers are limited by its quota, whatever they follow, and other tenants' are not") {
  TestPool pool;
  pool.register_node(1, 1, 1);
  CHECK(default_quota().followers() == 4096);
  pool::TenantQuota quota;
  quota.set_followers(2);
  REQUIRE(pool.core->set_quota("a", quota, pool.now));
  const auto follow = [&](const char* id, const std::string& tenant) {
    pool::Request request = to_follow(ask(1));
    request.set_id(id);
    return pool.request(request, tenant);
  };
  const Stream first = follow("sixteen bytes 01", "a");
  const Stream second = follow("sixteen bytes 02", "a");
  CHECK_FALSE(pool.last_message<Refusal>(first));
  CHECK_FALSE(pool.last_message<Refusal>(second));
  const Stream third = follow("sixteen bytes 03", "a");
  REQUIRE(pool.last_message<Refusal>(third));
  CHECK(pool.last_message<Refusal>(third)->kind == Refusal::Kind::exhausted);
  CHECK(pool.last_message<Refusal>(third)->reason ==
        "tenant 'a' has 2 followers of leases, which is the limit of its quota (followers)");
  CHECK_FALSE(pool.last_message<Refusal>(follow("sixteen bytes 01", "b")));
  pool.core->client_disconnected(first, pool.now);
  CHECK_FALSE(pool.last_message<Refusal>(follow("sixteen bytes 03", "a")));
  quota.set_followers(0);  // no limit
  REQUIRE(pool.core->set_quota("a", quota, pool.now));
  CHECK_FALSE(pool.last_message<Refusal>(follow("sixteen bytes 04", "a")));
}

TEST_CASE("another tenant's followers do not get the lease") {
  TestPool pool;
  pool.register_node(1, 1, 1);
  const Stream stranger = pool.request(to_follow(ask(1)), "b");
  REQUIRE(pool.grant(pool.request(with_id(ask(1)))));
  CHECK_FALSE(pool.grant(stranger));
  CHECK_FALSE(pool.grant(pool.request(to_follow(ask(1)), "b")));
}

TEST_CASE("a lease expires without its holder, whoever follows it, and its followers are told") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 1);
  const Stream holder = pool.request(with_id(ask(1)));
  const LeaseId id = pool.grant(holder)->lease;
  const Stream follower = pool.request(to_follow(ask(1)));
  pool.core->client_disconnected(holder, pool.now);
  for (int i = 0; i < 29; ++i) pool.pass(1000), pool.report(node, {{id, 1}});
  CHECK_FALSE(pool.last_message<pool::Ended>(follower));
  const Stream later = pool.request(to_follow(ask(1)));  // does not prolong it
  CHECK(pool.grant(later));
  for (int i = 0; i < 2; ++i) pool.pass(1000), pool.report(node, {{id, 1}});
  for (const Stream stream : {follower, later}) {
    REQUIRE(pool.last_message<pool::Ended>(stream));
    CHECK(pool.last_message<pool::Ended>(stream)->why() == pool::Ended::EXPIRED);
  }
}

TEST_CASE("a follower of a lease that nobody requests is refused after the hold time") {
  TestPool pool;
  const Stream node = pool.register_node(1, 1, 1);
  const Stream taken = pool.request(ask(1));
  const Stream waits = pool.request(with_id(ask(1)));  // queued: its followers wait with it
  const Stream follower = pool.request(to_follow(ask(1)));
  pass_with(pool, node, 60);
  CHECK_FALSE(pool.last_message<Refusal>(follower));
  pool.core->release(waits, pool.now);
  pool.settle();
  pass_with(pool, node, 29);
  CHECK_FALSE(pool.last_message<Refusal>(follower));
  pass_with(pool, node, 3);
  REQUIRE(pool.last_message<Refusal>(follower));
  CHECK(pool.last_message<Refusal>(follower)->kind == Refusal::Kind::invalid);
  CHECK(pool.grant(taken));
}

TEST_CASE("a follower leaves by release, by disconnecting and by the loss of its token") {
  TestPool pool;
  pool.register_node(1, 1, 1);
  const Stream holder = pool.request(with_id(ask(1)));
  const Stream releases = pool.request(to_follow(ask(1)));
  const Stream revoked = pool.request(to_follow(ask(1)));
  const Stream gone = pool.request(to_follow(ask(1)));
  pool.core->release(releases, pool.now);
  pool.core->revoke(revoked, "its token was removed", pool.now);
  pool.core->client_disconnected(gone, pool.now);
  pool.settle();
  CHECK(is_over(pool, releases));
  REQUIRE(pool.last_message<Refusal>(revoked));
  CHECK(pool.last_message<Refusal>(revoked)->kind == Refusal::Kind::denied);
  const auto messages = pool.published.clients.size();
  CHECK(pool.core->view_lease(pool.grant(holder)->lease)->held());
  pool.core->release(holder, pool.now);
  pool.settle();
  CHECK(pool.published.clients.size() == messages + 1);  // to the holder only
}

TEST_CASE("a lease can be followed only by a request id") {
  TestPool pool;
  pool::Request request = ask(1);
  request.set_follow(true);
  const Stream stream = pool.request(request);
  REQUIRE(pool.last_message<Refusal>(stream));
  CHECK(pool.last_message<Refusal>(stream)->kind == Refusal::Kind::invalid);
}

TEST_CASE("followers of a stored lease find it again after a crash of the scheduler") {
  TestPool pool;
  pool.register_node(1, 1, 1);
  const Stream holder = pool.request(with_id(ask(1)));
  const LeaseId id = pool.grant(holder)->lease;
  pool.start();
  pool.register_node(1, 1, 1);
  const Stream follower = pool.request(to_follow(ask(1)));
  REQUIRE(pool.grant(follower));
  CHECK(pool.grant(follower)->lease == id);
}
