// Tests how the client's connection goes on at another server, to which its session has moved.
#include <future>
#include <optional>
#include <utility>

#include "client/session/reconnector.h"
#include "tests/client/session/reconnector_line.h"
#include "tests/support/asleep.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::client;
using namespace gpupool::client::test;
using gpupool::testing::start_until_asleep;

TEST_CASE("reconnector: a session that moves continues with the other server, which mends later breaks") {
  Line line;
  const Server target;
  line.client.reconnector().expect_switch();
  line.cut();  // not mended: the session is about to leave
  auto next = connect_to(target);
  std::optional<Accepted> moved = target.accept();
  next->start();
  line.client.reconnector().switch_to(terms_for(target, "session two"), std::move(next));
  CHECK_FALSE(line.server.is_asked());
  CHECK(line.client.send("moved").get());
  CHECK(moved->receive(5) == "moved");
  moved->send("two");
  REQUIRE(line.client.await_received("onetwo"));

  moved.reset();
  const Accepted again = target.accept_hello();
  CHECK(again.hello.session_id == "session two");
  CHECK(proves(again.hello, 1, 3));  // counted from the move on
  again.resume(5);
  again.send("three");
  CHECK(line.client.await_received("onetwothree"));
}

// The session has been moved while its connection was broken and an attempt to resume it was under way.
TEST_CASE("reconnector: a session that moves during an attempt to resume it leaves the former server") {
  Line line;
  const Server target;
  line.cut();
  std::optional<Accepted> attempt = line.server.accept_hello();
  auto next = connect_to(target);
  const Accepted moved = target.accept();
  next->start();
  line.client.reconnector().expect_switch();
  // It waits, because it cannot break a carrier that is broken.
  auto switched = start_until_asleep(
      [&] { line.client.reconnector().switch_to(terms_for(target, "session two"), std::move(next)); });
  SECTION("which succeeds") {
    attempt->resume(5);
  }
  SECTION("which the server refuses") {
    hello::HelloReply refusal;
    refusal.status = hello::Status::denied;
    attempt->answer(refusal);
  }
  SECTION("which fails, like those that follow") {
    line.server.refuse_connections();
    attempt.reset();
  }
  const bool in_time = switched.wait_for(kPatience) == std::future_status::ready;
  if (!in_time) line.client.connection().close();
  REQUIRE(in_time);
  CHECK(line.client.send("moved").get());
  CHECK(moved.receive(5) == "moved");
  moved.send("two");
  CHECK(line.client.await_received("onetwo"));
}

// The server may have ended the session, because the other one has it.
TEST_CASE("reconnector: a session that is about to move outlives the former server's refusal") {
  Line line;
  const Server target;
  line.cut();
  const Accepted attempt = line.server.accept_hello();
  line.client.reconnector().expect_switch();
  hello::HelloReply refusal;
  refusal.status = hello::Status::denied;
  attempt.answer(refusal);
  auto next = connect_to(target);
  const Accepted moved = target.accept();
  next->start();
  line.client.reconnector().switch_to(terms_for(target, "session two"), std::move(next));
  REQUIRE_FALSE(line.client.connection().over());
  CHECK(line.client.send("moved").get());
  CHECK(moved.receive(5) == "moved");
}

TEST_CASE("reconnector: a session that fails while it moves moves no further") {
  const Server server, target;
  auto& connection = keep(connect_to(server).release());
  auto& ended = keep(new std::promise<void>);
  auto& closed = keep(new std::promise<void>);
  auto& reconnector = keep(new Reconnector(connection, [&, waits = true](bool read) mutable {
    if (!read || !std::exchange(waits, false)) return;
    ended.set_value();
    closed.get_future().wait();
  }));
  std::optional<Accepted> first = server.accept();
  reconnector.start(terms_for(server));
  reconnector.expect_switch();
  first.reset();
  ended.get_future().wait();  // the reconnector's thread has not seen why yet

  auto next = connect_to(target);
  const Accepted adopted = target.accept();
  next->start();
  auto switched = std::async(
      std::launch::async, [&] { reconnector.switch_to(terms_for(target, "session two"), std::move(next)); });
  while (!connection.broken()) std::this_thread::yield();  // switch_to() has broken it, and waits
  connection.close();
  closed.set_value();
  CHECK(switched.wait_for(kPatience) == std::future_status::ready);
  CHECK(connection.over());
  std::byte byte;
  CHECK_FALSE(
      transport::receive_exact(*adopted.connection, {&byte, 1}, Clock::now() + kPatience));  // its end
}

TEST_CASE("reconnector: a session that has nowhere to go ends with the reason") {
  Line line;
  line.client.reconnector().expect_switch();
  line.cut();
  line.client.reconnector().give_up({ErrorCode::lost, "the suspended session was dropped"});
  CHECK(line.client.await_failure() == "the suspended session was dropped");
  CHECK_FALSE(line.server.is_asked());
}
