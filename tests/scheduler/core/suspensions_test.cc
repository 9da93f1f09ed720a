// Leases that operators suspend and resume: states, quota, failures, and the scheduler's restart.
#include "tests/scheduler/core/suspending_pool.h"
#include "tests/support/catch.h"
#include "tests/support/contains.h"

using namespace gpupool::scheduler;
using namespace gpupool;
using Catch::Matchers::ContainsSubstring;
using pool::LeaseStandstill;

TEST_CASE("a suspended lease gives its GPUs and its quota back and gets them again") {
  SuspendingPool pool({1});
  const Stream holder = pool.ask_for(1, lease::NORMAL);
  pool.report_all();
  REQUIRE(pool.suspend(holder));
  CHECK(pool.is_in(holder, LeaseStandstill::SUSPENDING));
  CHECK(pool.ordered(1, holder) == "suspend");
  CHECK(pool.leased_milli() == 1000);
  pool.report_on(1, Answer::SUSPENDING);
  CHECK(pool.leased_milli() == 1000);
  pool.report_on(1, Answer::SUSPENDED);
  CHECK(pool.is_in(holder, LeaseStandstill::SUSPENDED));
  CHECK(pool.ordered(1, holder) ==
        "suspend");  // repeated, in case that poold is upgraded or the leader changes
  CHECK(pool.leased_milli() == 0);
  CHECK(pool.tenant("a").compute_milli() == 0);
  CHECK(pool.tenant("a").memory_bytes() == 0);
  CHECK(pool.tenant("a").leases() == 1);
  CHECK(pool.state(holder).suspension().bytes() == 5 * kGiB);
  CHECK(pool.core->view_pool().leases_suspended() == 1);
  CHECK(pool.count("lease_suspended") == 1);

  pool.pass_with_reports(5'000);
  CHECK(pool.is_in(holder, LeaseStandstill::SUSPENDED));  // an operator holds it
  REQUIRE(pool.resume(holder));
  CHECK(pool.is_in(holder, LeaseStandstill::RESUMING));
  CHECK(pool.ordered(1, holder) == "resume");
  CHECK(pool.leased_milli() == 1000);
  CHECK(pool.tenant("a").compute_milli() == 1000);
  pool.report_on(1, Answer::RESUMING);
  CHECK(pool.is_in(holder, LeaseStandstill::RESUMING));
  pool.report_on(1, Answer::RUNNING);
  CHECK(pool.runs(holder));
  CHECK(pool.ordered(1, holder).empty());
  const auto counters = pool.core->view_pool().counters();
  CHECK(counters.suspensions_begun() == 1);
  CHECK(counters.suspensions_done() == 1);
  CHECK(counters.suspensions_resumed() == 1);
  CHECK(counters.suspended_bytes() == 5 * kGiB);
  CHECK(counters.suspended_ms() == 5'000);
}

TEST_CASE("another lease gets the GPUs of a suspended one, which waits until they are free") {
  SuspendingPool pool({1});
  const Stream first = pool.ask_for(1, lease::NORMAL);
  const Stream second = pool.ask_for(1, lease::NORMAL, 1000, "b");
  pool.report_all();
  CHECK_FALSE(pool.grant(second));
  pool.suspend_fully(first);
  REQUIRE(pool.grant(second));
  pool.report_all();
  REQUIRE(pool.resume(first));
  CHECK(pool.is_in(first, LeaseStandstill::SUSPENDED));
  CHECK_THAT(pool.state(first).suspension().reason(),
             ContainsSubstring("waits for room on GPU 0 of node 'n1'"));
  pool.leave(second, 1);
  CHECK(pool.is_in(first, LeaseStandstill::RESUMING));
}

TEST_CASE("commands that do not fit the lease's state are refused") {
  SuspendingPool pool({2, 2});
  const Stream holder = pool.ask_for(1, lease::NORMAL);
  pool.report_all();
  CHECK_THAT(pool.resume(holder).error().message, ContainsSubstring("it is not suspended"));
  CHECK_THAT(pool.core->suspend_lease("ffff", pool.now).error().message, ContainsSubstring("unknown lease"));
  REQUIRE(pool.suspend(holder));
  CHECK_THAT(pool.suspend(holder).error().message, ContainsSubstring("already"));
  CHECK_THAT(pool.core->move(pool.id_of(holder), "", "n2", pool.now).error().message,
             ContainsSubstring("it is suspended"));
  pool.report_on(1, Answer::SUSPENDED);
  CHECK_THAT(pool.suspend(holder).error().message, ContainsSubstring("it is suspended already"));
  REQUIRE(pool.resume(holder));
  CHECK_THAT(pool.resume(holder).error().message, ContainsSubstring("it is being resumed already"));
  CHECK_THAT(pool.suspend(holder).error().message, ContainsSubstring("being suspended or resumed"));
  pool.report_on(1, Answer::RUNNING);
  REQUIRE(pool.core->move(pool.id_of(holder), "", "n2", pool.now));
  CHECK_THAT(pool.suspend(holder).error().message, ContainsSubstring("it is moving"));
  REQUIRE(pool.core->evict(pool.id_of(holder), "", 10'000, pool.now));
  CHECK_THAT(pool.suspend(holder).error().message, ContainsSubstring("it is ending"));
  CHECK_THAT(pool.resume(holder).error().message, ContainsSubstring("it is ending"));
}

TEST_CASE("a lease is suspended only where its node has room for it") {
  SuspendingPool pool({1});
  const Stream holder = pool.ask_for(1, lease::NORMAL);  // 16 GiB
  const auto why = [&] { return pool.suspend(holder).error().message; };
  pool.room = UINT64_MAX;
  pool.report_all();
  CHECK_THAT(why(), ContainsSubstring("has a poold that cannot suspend leases"));
  pool.room = 0;
  pool.report_all();
  CHECK_THAT(why(), ContainsSubstring("has no room for suspended sessions"));
  pool.room = 15 * kGiB;
  pool.report_all();
  CHECK_THAT(why(),
             ContainsSubstring("has room for 15.0 GiB of suspended sessions, and 16.0 GiB may be needed"));
  pool.sessions[pool.grant(holder)->lease] = 0;  // nothing to be stored
  pool.report_all();
  CHECK(pool.suspend(holder));
}

TEST_CASE("leases that are being suspended share the room of their node") {
  SuspendingPool pool({2});
  const Stream first = pool.ask_for(1, lease::NORMAL), second = pool.ask_for(1, lease::NORMAL);
  pool.room = 20 * kGiB;
  pool.report_all();
  REQUIRE(pool.suspend(first));
  CHECK_THAT(pool.suspend(second).error().message, ContainsSubstring("32.0 GiB may be needed"));
}

TEST_CASE("a lease that one node cannot suspend goes on everywhere") {
  SuspendingPool pool({1, 1});
  const Stream holder = pool.ask_for(2, lease::NORMAL);
  pool.report_all();
  REQUIRE(pool.suspend(holder));
  pool.report_on(1, Answer::SUSPENDED);
  CHECK(pool.leased_milli() == 2000);
  pool.report_on(2, Answer::RUNNING, "session 3: it shares memory");
  CHECK(pool.is_in(holder, LeaseStandstill::RESUMING));
  CHECK(pool.ordered(1, holder) == "resume");
  CHECK(pool.ordered(2, holder) == "resume");
  CHECK(pool.leased_milli() == 2000);
  pool.report_on(1, Answer::SUSPENDED, "", 1);  // an answer to the first order
  CHECK(pool.leased_milli() == 2000);
  pool.report_on(1, Answer::RUNNING);
  CHECK(pool.is_in(holder, LeaseStandstill::RESUMING));
  pool.report_on(2, Answer::RUNNING);
  CHECK(pool.is_in(holder, LeaseStandstill::FAILED));
  CHECK(pool.state(holder).suspension().reason() == "node 'n2': session 3: it shares memory");
  CHECK(pool.state(holder).keeps_until_ms() == 0);
  CHECK(pool.core->view_pool().counters().suspensions_failed() == 1);
}

TEST_CASE("an answer to an earlier order does not end a later one") {
  SuspendingPool pool({1});
  const Stream holder = pool.ask_for(1, lease::NORMAL);
  pool.report_all();
  REQUIRE(pool.suspend(holder));
  REQUIRE(pool.resume(holder));
  // The node has not executed the second order yet: it will hold the lease until that.
  pool.report_on(1, Answer::RUNNING, "", 1);
  CHECK(pool.is_in(holder, LeaseStandstill::RESUMING));
  pool.report_on(1, Answer::RUNNING);
  CHECK(pool.is_in(holder, LeaseStandstill::FAILED));
  CHECK_THAT(pool.state(holder).suspension().reason(), ContainsSubstring("an operator has resumed it"));
}

TEST_CASE("a suspension that takes too long is given up, but not while its node is silent") {
  SuspendingPool pool({1});
  const Stream holder = pool.ask_for(1, lease::NORMAL);
  pool.set([](pool::Policy& policy) { policy.set_suspend_ms(10'000), policy.set_node_lost_ms(100'000); });
  pool.report_all();
  REQUIRE(pool.suspend(holder));
  pool.pass(30'000);
  CHECK(pool.is_in(holder, LeaseStandstill::SUSPENDING));  // the node may have executed it
  pool.report_on(1, Answer::SUSPENDING);
  pool.pass_with_reports(1'000);
  CHECK(pool.is_in(holder, LeaseStandstill::RESUMING));
  CHECK_THAT(pool.state(holder).suspension().reason(),
             ContainsSubstring("it was not suspended within 10 s (policy suspend): 1 session left"));
}

TEST_CASE("the quota limits when a suspended lease is resumed, and it goes before its tenant's requests") {
  SuspendingPool pool({3});
  pool::TenantQuota quota;
  quota.set_compute_milli(1000);
  REQUIRE(pool.core->set_quota("a", quota, pool.now));
  const Stream first = pool.ask_for(1, lease::NORMAL);
  pool.report_all();
  pool.suspend_fully(first);
  const Stream second = pool.ask_for(1, lease::NORMAL);
  REQUIRE(pool.grant(second));  // within the quota, since the first one is suspended
  pool.report_all();
  REQUIRE(pool.resume(first));
  CHECK_THAT(pool.state(first).suspension().reason(), ContainsSubstring("waits for quota of tenant 'a'"));
  const Stream third = pool.ask_for(1, lease::NORMAL);
  CHECK(pool.ask_for(1, lease::NORMAL, 1000, "b") != 0);  // other tenants are not held up
  CHECK(pool.grant(pool.streams));
  pool.leave(second, 1);
  CHECK(pool.is_in(first, LeaseStandstill::RESUMING));
  CHECK_FALSE(pool.grant(third));
  CHECK(pool.tenant("a").compute_milli() == 1000);
}

TEST_CASE("suspended leases count in the quota of leases") {
  SuspendingPool pool({2});
  pool::TenantQuota quota;
  quota.set_leases(1);
  REQUIRE(pool.core->set_quota("a", quota, pool.now));
  const Stream first = pool.ask_for(1, lease::NORMAL);
  pool.report_all();
  pool.suspend_fully(first);
  CHECK_FALSE(pool.grant(pool.ask_for(1, lease::NORMAL)));
}

TEST_CASE("small requests do not starve a suspended lease that waits for a whole GPU") {
  SuspendingPool pool({1});
  const Stream big = pool.ask_for(1, lease::NORMAL);
  pool.report_all();
  pool.suspend_fully(big);
  const Stream left = pool.ask_for(1, lease::NORMAL, 500, "b"),
               right = pool.ask_for(1, lease::NORMAL, 500, "b");
  REQUIRE((pool.grant(left) && pool.grant(right)));
  pool.report_all();
  REQUIRE(pool.resume(big));
  const Stream waiting = pool.ask_for(1, lease::NORMAL, 500, "b");
  const Stream urgent = pool.ask_for(1, lease::LATENCY_CRITICAL, 500, "b");
  pool.leave(left, 1);
  CHECK_FALSE(pool.grant(waiting));
  REQUIRE(pool.grant(urgent));  // of a higher priority
  pool.report_all();
  pool.leave(urgent, 1);
  CHECK_FALSE(pool.grant(waiting));
  pool.leave(right, 1);
  CHECK(pool.is_in(big, LeaseStandstill::RESUMING));
  CHECK_FALSE(pool.grant(waiting));
}

TEST_CASE("suspended leases are resumed in the order of their priority and age") {
  SuspendingPool pool({1});
  const Stream old = pool.ask_for(1, lease::NORMAL);
  pool.report_all();
  pool.suspend_fully(old);
  pool.pass_with_reports(2'000);
  const Stream young = pool.ask_for(1, lease::NORMAL, 500);
  pool.report_all();
  pool.suspend_fully(young);
  pool.pass_with_reports(2'000);
  const Stream urgent = pool.ask_for(1, lease::LATENCY_CRITICAL, 500);
  pool.report_all();
  pool.suspend_fully(urgent);
  const Stream blocks = pool.ask_for(1, lease::NORMAL, 1000, "b");
  REQUIRE(pool.grant(blocks));
  pool.report_all();
  for (const Stream one : {young, old, urgent}) REQUIRE(pool.resume(one));
  pool.leave(blocks, 1);
  CHECK(pool.is_in(urgent, LeaseStandstill::RESUMING));
  CHECK(pool.is_in(old, LeaseStandstill::SUSPENDED));
  CHECK(pool.is_in(young, LeaseStandstill::SUSPENDED));  // it would fit beside the urgent one
  pool.report_on(1, Answer::RUNNING);
  pool.leave(urgent, 1);
  CHECK(pool.is_in(old, LeaseStandstill::RESUMING));
  pool.report_on(1, Answer::RUNNING);
  pool.leave(old, 1);
  CHECK(pool.is_in(young, LeaseStandstill::RESUMING));
}

TEST_CASE("a suspended lease is resumed on a drained node, but not on one that is silent") {
  SuspendingPool pool({1});
  const Stream holder = pool.ask_for(1, lease::NORMAL);
  pool.report_all();
  pool.suspend_fully(holder);
  REQUIRE(pool.core->drain("n1", "new kernel", false, {}, pool.now, true));
  pool.pass(20'000);
  REQUIRE(pool.resume(holder));
  CHECK_THAT(pool.state(holder).suspension().reason(),
             ContainsSubstring("waits for node 'n1', which is silent"));
  pool.report_all();
  CHECK(pool.is_in(holder, LeaseStandstill::RESUMING));
}

TEST_CASE("a suspended lease outlives the scheduler in each state") {
  SuspendingPool pool({1});
  const Stream holder = pool.ask_for(1, lease::BEST_EFFORT);
  pool.report_all();
  const auto restart = [&] {
    pool.start();
    pool.nodes.clear();
    pool.add_node(1, 100, 1);
    pool.core->resume(holder, "a", pool.grant(holder)->lease, pool.now);
    pool.settle();
    check_books(*pool.core, pool.now);
  };
  REQUIRE(pool.suspend(holder));
  restart();
  CHECK(pool.is_in(holder, LeaseStandstill::SUSPENDING));
  CHECK(pool.ordered(1, holder) == "suspend");
  CHECK(pool.leased_milli() == 1000);
  pool.report_on(1, Answer::SUSPENDED);
  CHECK(pool.leased_milli() == 0);
  restart();
  CHECK(pool.is_in(holder, LeaseStandstill::SUSPENDED));
  CHECK(pool.state(holder).suspension().held());
  CHECK(pool.leased_milli() == 0);
  CHECK(pool.tenant("a").leases() == 1);
  pool.report_on(1, Answer::SUSPENDED);
  REQUIRE(pool.resume(holder));
  restart();
  CHECK(pool.is_in(holder, LeaseStandstill::RESUMING));
  CHECK(pool.ordered(1, holder) == "resume");
  CHECK(pool.leased_milli() == 1000);
  pool.report_on(1, Answer::RUNNING);
  const int64_t until = pool.state(holder).keeps_until_ms();
  CHECK(until > pool.now);
  restart();
  CHECK(pool.state(holder).keeps_until_ms() == until);
}

TEST_CASE("a suspended lease ends as others do") {
  SuspendingPool pool({1});
  const Stream holder = pool.ask_for(1, lease::NORMAL);
  const LeaseId id = pool.grant(holder)->lease;
  pool.report_all();
  pool.suspend_fully(holder);
  SECTION("released by its client") {
    pool.core->release(holder, pool.now);
  }
  SECTION("evicted, without a grace, because no program runs that could use it") {
    REQUIRE(pool.core->evict(pool.id_of(holder), "", 30'000, pool.now));
    CHECK(pool.core->view_lease(id)->end_at_ms() == pool.now);
  }
  SECTION("when its client is disconnected for too long") {
    pool.core->client_disconnected(holder, pool.now);
    pool.pass_with_reports(31'000);
  }
  pool.settle();
  check_books(*pool.core, pool.now);
  CHECK(pool.core->view_lease(id)->ending());
  CHECK(pool.leased_milli() == 0);
  CHECK(pool.ordered(1, holder).empty());
  pool.report(pool.nodes.at(1), {{id, 0}});
  CHECK_FALSE(pool.core->view_lease(id));
  CHECK(pool.tenant("a").leases() == 0);
  CHECK(pool.leased_milli() == 0);
  CHECK(pool.store.count("lease/" + lease::hexadecimal(id)) == 0);
}

TEST_CASE("a lease ends with its node in each state of a suspension") {
  SuspendingPool pool({1});
  const Stream holder = pool.ask_for(1, lease::NORMAL);
  const LeaseId id = pool.grant(holder)->lease;
  pool.report_all();
  REQUIRE(pool.suspend(holder));
  SECTION("while it is being suspended") {}
  SECTION("while it is suspended") {
    pool.report_on(1, Answer::SUSPENDED);
  }
  SECTION("while it is being resumed") {
    pool.report_on(1, Answer::SUSPENDED);
    REQUIRE(pool.resume(holder));
  }
  SECTION("after its node was lost") {
    pool.pass(40'000);
  }
  pool.core->node_disconnected(pool.nodes.at(1), pool.now);
  pool.add_node(1, 777, 1);  // another process
  check_books(*pool.core, pool.now);
  CHECK_FALSE(pool.core->view_lease(id));
  CHECK(pool.leased_milli() == 0);
  CHECK(pool.tenant("a").compute_milli() == 0);
  CHECK(pool.tenant("a").leases() == 0);
  CHECK(pool.grant(pool.ask_for(1, lease::NORMAL)));
}

TEST_CASE("the tokens of a suspended lease are renewed") {
  SuspendingPool pool({1});
  const Stream holder = pool.ask_for(1, lease::NORMAL);
  pool.report_all();
  pool.suspend_fully(holder);
  const uint64_t serial = pool.state(holder).serial();
  pool.pass_with_reports(601'000);
  CHECK(pool.state(holder).serial() >= serial + 2);
  CHECK(pool.grant(holder)->expires > pool.now);
}

TEST_CASE("a node that runs a lease that it had suspended gets no further leases") {
  SuspendingPool pool({1});
  const Stream holder = pool.ask_for(1, lease::NORMAL);
  pool.report_all();
  pool.suspend_fully(holder);
  pool.lies = true;
  pool.report_on(1, Answer::RUNNING);
  CHECK(pool.core->view_node("n1")->condition() == pool::NodeState::FENCED);
}
