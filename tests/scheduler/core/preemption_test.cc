// Preemption of best-effort leases by suspending them (policy preempt).
#include "tests/scheduler/core/suspending_pool.h"
#include "tests/support/catch.h"
#include "tests/support/contains.h"

using namespace gpupool::scheduler;
using namespace gpupool;
using Catch::Matchers::ContainsSubstring;
using pool::LeaseStandstill;

TEST_CASE("a preempted lease ends unless the policy says that it is suspended") {
  SuspendingPool pool({1});
  const Stream weak = pool.ask_for(1, lease::BEST_EFFORT);
  pool.report_all();
  pool.ask_for(1, lease::NORMAL);
  CHECK(pool.state(weak).ending());
}

TEST_CASE("a preempted lease is suspended and goes on when the urgent one has ended") {
  SuspendingPool pool({1});
  pool.preempt_by_suspending();
  const Stream weak = pool.ask_for(1, lease::BEST_EFFORT);
  pool.report_all();
  const Stream urgent = pool.ask_for(1, lease::NORMAL, 1000, "b");
  CHECK(pool.is_in(weak, LeaseStandstill::SUSPENDING));
  CHECK(pool.state(weak).suspension().preempted());
  CHECK_FALSE(pool.grant(urgent));
  pool.report_on(1, Answer::SUSPENDED);
  REQUIRE(pool.grant(urgent));
  pool.report_all();
  CHECK(pool.is_in(weak, LeaseStandstill::SUSPENDED));
  pool.pass_with_reports(120'000);
  CHECK(pool.is_in(weak, LeaseStandstill::SUSPENDED));
  pool.leave(urgent, 1);
  CHECK(pool.is_in(weak, LeaseStandstill::RESUMING));
  pool.report_on(1, Answer::RUNNING);
  CHECK(pool.runs(weak));
}

TEST_CASE("a lease that has just been resumed is not preempted before the policy's time is over") {
  SuspendingPool pool({1});
  pool.preempt_by_suspending();
  pool.set([](pool::Policy& policy) { policy.set_resumed_run_ms(60'000); });
  const Stream weak = pool.ask_for(1, lease::BEST_EFFORT);
  pool.report_all();
  const Stream urgent = pool.ask_for(1, lease::NORMAL, 1000, "b");
  pool.report_on(1, Answer::SUSPENDED);
  pool.report_all();
  pool.leave(urgent, 1);
  pool.report_on(1, Answer::RUNNING);
  const Stream next = pool.ask_for(1, lease::NORMAL, 1000, "b");
  pool.pass_with_reports(58'000);
  CHECK(pool.runs(weak));
  pool.pass_with_reports(4'000);
  CHECK(pool.is_in(weak, LeaseStandstill::SUSPENDING));
  pool.report_on(1, Answer::SUSPENDED);
  CHECK(pool.grant(next));
}

TEST_CASE("a preempted lease that cannot be suspended ends and its holder is told why") {
  SuspendingPool pool({1});
  pool.preempt_by_suspending();
  pool.set([](pool::Policy& policy) { policy.set_suspend_ms(10'000), policy.set_grace_ms(5'000); });
  const Stream weak = pool.ask_for(1, lease::BEST_EFFORT);
  std::string why;
  SECTION("without room on its node") {
    pool.room = 0;
    pool.report_all();
    pool.ask_for(1, lease::NORMAL, 1000, "b");
    why = "has no room for suspended sessions";
  }
  SECTION("as its node says") {
    pool.report_all();
    pool.ask_for(1, lease::NORMAL, 1000, "b");
    pool.report_on(1, Answer::RESUMING, "session 1: it has a mapped file");
    why = "session 1: it has a mapped file";
  }
  SECTION("in time") {
    pool.report_all();
    pool.ask_for(1, lease::NORMAL, 1000, "b");
    pool.pass_with_reports(12'000);
    why = "it was not suspended within 10 s";
  }
  const pool::Ended* const ended = pool.last_message<pool::Ended>(weak);
  REQUIRE(ended);
  CHECK(ended->why() == pool::Ended::PREEMPTED);
  CHECK_THAT(ended->reason(), ContainsSubstring("tenant 'b' needs the GPU"));
  CHECK_THAT(ended->reason(), ContainsSubstring("could not be suspended: "));
  CHECK_THAT(ended->reason(), ContainsSubstring(why));
  CHECK(pool.state(weak).ending());
  CHECK(pool.ordered(1, weak).empty());
}

TEST_CASE("no more leases are suspended than the request needs") {
  SuspendingPool pool({1});
  pool.preempt_by_suspending();
  const Stream first = pool.ask_for(1, lease::BEST_EFFORT, 400);
  pool.pass_with_reports(2'000);
  const Stream second = pool.ask_for(1, lease::BEST_EFFORT, 400);
  pool.report_all();
  const Stream urgent = pool.ask_for(1, lease::NORMAL, 500, "b");
  CHECK(pool.is_in(second, LeaseStandstill::SUSPENDING));  // the youngest
  CHECK(pool.runs(first));
  pool.pass_with_reports(3'000);
  CHECK(pool.runs(first));
  pool.report_on(1, Answer::SUSPENDED);
  CHECK(pool.grant(urgent));
}

TEST_CASE("a suspended lease of a higher priority preempts best-effort leases when it is resumed") {
  SuspendingPool pool({1});
  pool.preempt_by_suspending();
  const Stream strong = pool.ask_for(1, lease::NORMAL);
  pool.report_all();
  pool.suspend_fully(strong);
  const Stream weak = pool.ask_for(1, lease::BEST_EFFORT, 1000, "b");
  REQUIRE(pool.grant(weak));
  pool.report_all();
  REQUIRE(pool.resume(strong));
  CHECK(pool.is_in(weak, LeaseStandstill::SUSPENDING));
  pool.report_on(1, Answer::SUSPENDED);
  CHECK(pool.is_in(weak, LeaseStandstill::SUSPENDED));
  CHECK(pool.is_in(strong, LeaseStandstill::RESUMING));
}

TEST_CASE("a lease is resumed when the request that it gave way to is cancelled") {
  SuspendingPool pool({1});
  pool.preempt_by_suspending();
  const Stream weak = pool.ask_for(1, lease::BEST_EFFORT);
  pool.report_all();
  const Stream urgent = pool.ask_for(1, lease::NORMAL, 1000, "b");
  pool.core->release(urgent, pool.now);
  pool.settle();
  pool.report_on(1, Answer::SUSPENDED);
  CHECK(pool.is_in(weak, LeaseStandstill::RESUMING));
}

TEST_CASE("preemption goes on after the scheduler's restart") {
  SuspendingPool pool({1});
  pool.preempt_by_suspending();
  const Stream weak = pool.ask_for(1, lease::BEST_EFFORT);
  pool.report_all();
  pool.ask_for(1, lease::NORMAL, 1000, "b");
  pool.start();
  pool.nodes.clear();
  pool.add_node(1, 100, 1);
  CHECK(pool.state(weak).suspension().preempted());
  const Stream urgent = pool.ask_for(1, lease::NORMAL, 1000, "b");
  pool.report_on(1, Answer::SUSPENDED);
  CHECK(pool.grant(urgent));
}
