// LeaseSuspensions with sessions that the test moves by hand.
#include "server/poold/node/lease_suspensions.h"

#include <algorithm>
#include <optional>

#include "tests/support/catch.h"
#include "tests/support/contains.h"

using namespace gpupool;
using Catch::Matchers::ContainsSubstring;
using pool::LeaseSuspension;
using server::LeaseSuspensions;
using Place = LeaseSuspensions::Session::Place;

namespace {

const std::string kLease(16, 'l');

struct Node {
  void add(uint64_t session, Place place = Place::running) { sessions.all.push_back({session, place, 100}); }
  LeaseSuspensions::Session& at(uint64_t session) {
    return *std::ranges::find(sessions.all, session, &LeaseSuspensions::Session::number);
  }
  void move(uint64_t session, Place to) {
    at(session).place = to;
    suspensions.update();
  }
  void end(uint64_t session) {
    std::erase_if(sessions.all, [&](const auto& one) { return one.number == session; });
    suspensions.update();
  }
  // The session goes on as another one.
  void go_on(uint64_t session, uint64_t as) {
    add(as);
    end(session);
  }
  void suspend(uint64_t number) { suspensions.order(kLease, number, false); }
  void resume(uint64_t number) { suspensions.order(kLease, number, true); }
  LeaseSuspension told() {
    pool::NodeReport report;
    suspensions.report(report);
    REQUIRE(report.suspensions_size() == 1);
    return report.suspensions(0);
  }
  LeaseSuspension::State state() { return told().state(); }
  Result<void> take(uint64_t session, Place to, std::vector<uint64_t>& list,
                    LeaseSuspensions::Failed failed) {
    list.push_back(session);
    if (refusal) return Error{ErrorCode::closed, *refusal};
    failures[session] = std::move(failed);
    if (to == Place::storing) at(session).place = to;
    return {};
  }

  LeaseSuspensions::Sessions sessions;
  std::vector<uint64_t> suspended, resumed;  // by LeaseSuspensions
  std::map<uint64_t, LeaseSuspensions::Failed> failures;
  std::optional<std::string> refusal;
  LeaseSuspensions suspensions{
      {.sessions = [this](const std::string&) { return sessions; },
       .suspend = [this](uint64_t session,
                         auto failed) { return take(session, Place::storing, suspended, failed); },
       .resume = [this](uint64_t session,
                        auto failed) { return take(session, Place::resuming, resumed, failed); },
       .room =
           [] {
             pool::SuspensionRoom room;
             room.set_memory_bytes(1000);
             return room;
           }},
      [](const std::string&) { return std::string("tenant"); }};
};

using Numbers = std::vector<uint64_t>;

}  // namespace

TEST_CASE("a lease is suspended when no session has a worker") {
  Node node;
  node.add(1), node.add(2);
  node.suspend(7);
  CHECK(node.suspended == Numbers{1, 2});
  CHECK(node.state() == LeaseSuspension::SUSPENDING);
  CHECK(node.suspensions.refuses_sessions(kLease));
  node.move(1, Place::leaving), node.move(2, Place::suspended);
  CHECK(node.state() == LeaseSuspension::SUSPENDING);  // a worker still has memory of the GPU
  node.at(1).place = Place::suspended;
  CHECK(node.suspensions.update());
  const auto told = node.told();
  CHECK(told.state() == LeaseSuspension::SUSPENDED);
  CHECK(told.number() == 7);
  CHECK(told.sessions() == 2);
  CHECK(told.bytes() == 200);
  CHECK_FALSE(node.suspensions.update());  // it was reported
  node.suspend(7);
  CHECK(node.suspended == Numbers{1, 2});

  node.resume(8);
  CHECK(node.resumed == Numbers{1, 2});
  CHECK(node.state() == LeaseSuspension::RESUMING);
  CHECK_FALSE(node.suspensions.refuses_sessions(kLease));
  node.move(1, Place::resuming), node.move(2, Place::resuming);
  node.go_on(1, 3);
  CHECK(node.state() == LeaseSuspension::RESUMING);
  node.go_on(2, 4);
  CHECK(node.state() == LeaseSuspension::RUNNING);
  CHECK(node.told().number() == 8);
}

TEST_CASE("a client that waits for a worker is suspended when it has one") {
  Node node;
  node.sessions.waiting = 1;
  node.suspend(1);
  CHECK(node.state() == LeaseSuspension::SUSPENDING);
  node.sessions.waiting = 0;
  node.add(5);
  node.suspensions.update();
  CHECK(node.suspended == Numbers{5});
  node.move(5, Place::suspended);
  CHECK(node.state() == LeaseSuspension::SUSPENDED);
}

TEST_CASE("a lease without sessions is suspended at once and gets none") {
  Node node;
  node.suspend(1);
  CHECK(node.state() == LeaseSuspension::SUSPENDED);
  CHECK(node.suspensions.refuses_sessions(kLease));
}

TEST_CASE("all sessions go on if one cannot be suspended") {
  Node node;
  node.add(1), node.add(2);
  node.suspend(1);
  node.move(1, Place::suspended);
  node.failures.at(2)("it shares memory");
  node.move(2, Place::running);
  CHECK(node.resumed == Numbers{1});
  CHECK(node.state() == LeaseSuspension::RESUMING);
  CHECK_THAT(node.told().reason(), ContainsSubstring("session 2: it shares memory"));
  node.go_on(1, 3);
  CHECK(node.state() == LeaseSuspension::RUNNING);
  CHECK_THAT(node.told().reason(), ContainsSubstring("it shares memory"));
  node.suspend(1);  // the scheduler has not read the report yet
  CHECK(node.suspended == Numbers{1, 2});
}

TEST_CASE("a session that refuses at once leaves the lease running") {
  Node node;
  node.add(1);
  node.refusal = "this poold suspends no sessions to host memory";
  node.suspend(1);
  CHECK(node.state() == LeaseSuspension::RUNNING);
  CHECK(node.told().reason() == *node.refusal);
  CHECK_FALSE(node.suspensions.refuses_sessions(kLease));
}

TEST_CASE("a session whose client answers after its lease was resumed is resumed") {
  Node node;
  node.add(1);
  node.suspend(1);
  node.resume(2);
  CHECK(node.state() == LeaseSuspension::RUNNING);  // it runs until its client answers
  node.suspensions.keep_only({});                   // the scheduler has no order any more
  node.move(1, Place::suspended);
  CHECK(node.state() == LeaseSuspension::RESUMING);
  CHECK(node.resumed == Numbers{1});
  node.go_on(1, 2);
  CHECK(node.state() == LeaseSuspension::RUNNING);
  node.suspensions.keep_only({});
  pool::NodeReport report;
  node.suspensions.report(report);
  CHECK(report.suspensions().empty());
}

TEST_CASE("a session that could not be resumed is tried again with the next order") {
  Node node;
  node.add(1);
  node.suspend(1);
  node.move(1, Place::suspended);
  node.resume(2);
  node.failures.at(1)("no worker can start");
  node.suspensions.update();
  CHECK(node.resumed == Numbers{1});
  CHECK_THAT(node.told().reason(), ContainsSubstring("no worker can start"));
  node.resume(2);
  CHECK(node.resumed == Numbers{1, 1});
}

TEST_CASE("a suspended session whose client is gone does not keep its lease from running") {
  Node node;
  node.add(1);
  node.suspend(1);
  node.move(1, Place::suspended);
  node.end(1);
  CHECK(node.state() == LeaseSuspension::SUSPENDED);
  node.resume(2);
  CHECK(node.state() == LeaseSuspension::RUNNING);
  CHECK(node.resumed.empty());
}

TEST_CASE("sessions that the operator of poold has suspended stay so when their lease is resumed") {
  Node node;
  node.add(1, Place::suspended);
  node.suspend(1);
  CHECK(node.state() == LeaseSuspension::SUSPENDED);
  node.resume(2);
  CHECK(node.state() == LeaseSuspension::RUNNING);
  CHECK(node.resumed.empty());
}

TEST_CASE("a session that is being resumed is not suspended before it has gone on") {
  Node node;
  node.add(1, Place::resuming), node.add(2);
  node.suspend(1);
  CHECK(node.suspended.empty());
  node.end(1);
  CHECK(node.suspended == Numbers{2});
}

TEST_CASE("an order that a later one has overtaken is ignored") {
  Node node;
  node.add(1);
  node.resume(5);
  node.suspend(4);
  CHECK(node.suspended.empty());
  CHECK(node.told().number() == 5);
}

TEST_CASE("programs go on for the grace if their lease ends before it is suspended") {
  Node node;
  node.add(1), node.add(2);
  node.suspend(1);
  node.move(1, Place::suspended);
  node.suspensions.lease_ends(kLease);
  CHECK(node.resumed == Numbers{1});
  // Once it was reported as suspended, its GPUs may be another's.
  Node other;
  other.add(1);
  other.suspend(1);
  other.move(1, Place::suspended);
  other.suspensions.lease_ends(kLease);
  CHECK(other.resumed.empty());
  CHECK(other.suspensions.refuses_sessions(kLease));
}

TEST_CASE("a suspended lease without sessions stays suspended when poold is upgraded") {
  Node node;
  node.suspend(3);
  upgrade::Leases saved;
  node.suspensions.save(saved);
  Node next;
  next.suspensions.restore(saved);
  CHECK(next.suspensions.refuses_sessions(kLease));
  CHECK(next.told().state() == LeaseSuspension::SUSPENDED);
  CHECK(next.told().number() == 3);
}

TEST_CASE("leases that a scheduler invents do not fill the memory") {
  Node node;
  for (uint64_t i = 0; i < LeaseSuspensions::kMostLeases + 10; ++i)
    node.suspensions.order("lease " + std::to_string(i), 1, false);
  pool::NodeReport report;
  node.suspensions.report(report);
  CHECK(static_cast<size_t>(report.suspensions_size()) == LeaseSuspensions::kMostLeases);
}
