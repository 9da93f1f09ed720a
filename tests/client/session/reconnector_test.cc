// Tests how the client mends a broken connection.
#include "client/session/reconnector.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <vector>

#include "tests/client/session/reconnector_line.h"
#include "tests/support/catch.h"
#include "tests/support/contains.h"

using namespace gpupool;
using namespace gpupool::client;
using namespace gpupool::client::test;
using Catch::Matchers::ContainsSubstring;
using std::chrono::milliseconds;

TEST_CASE("reconnector: continues on another connection at the byte where the first one broke") {
  Line line;
  line.cut();
  auto sent = line.client.send(" again");
  const Accepted second = line.server.accept_hello();
  CHECK(second.hello.session_id == "session one");
  CHECK(second.hello.bulk_link == kLink);
  CHECK(proves(second.hello, 1, 3));
  second.resume(5);
  CHECK(second.receive(6) == " again");
  CHECK(sent.get());
  second.send("two");
  CHECK(line.client.await_received("onetwo"));
  CHECK(line.client.connection().times_resumed() == 1);
}

TEST_CASE("reconnector: sends again what the server has not received") {
  Line line;
  line.cut();
  const Accepted second = line.server.accept_hello();
  second.resume(2);
  CHECK(second.receive(3) == "llo");
  CHECK(line.client.send("!").get());
  CHECK(second.receive(1) == "!");
  CHECK(line.client.connection().resent() == 3);
}

TEST_CASE("reconnector: mends every break, and each attempt has a number and a proof of its own") {
  Line line;
  line.cut();
  (void)line.server.accept_hello();  // hangs up instead of an answer
  std::optional<Accepted> third = line.server.accept_hello();
  CHECK(proves(third->hello, 2, 3));
  third->resume(5);
  third->send("two");
  REQUIRE(line.client.await_received("onetwo"));
  third.reset();
  const Accepted fourth = line.server.accept_hello();
  CHECK(proves(fourth.hello, 3, 6));
  fourth.resume(5);
  fourth.send("three");
  CHECK(line.client.await_received("onetwothree"));
}

TEST_CASE("reconnector: tries again when a server stays silent until the deadline, or answers nonsense") {
  Line line([](Reconnector::Terms& terms) { terms.options.connect_timeout = milliseconds(2000); });
  line.cut();
  const Accepted silent = line.server.accept_hello();
  const Accepted other = line.server.accept_hello();
  CHECK(other.hello.resume_attempt == 2);
  other.send("220 mail.example ESMTP: what do you want of this host today?");
  const Accepted good = line.server.accept_hello();
  CHECK(proves(good.hello, 3, 3));
  good.resume(5);
  good.send("two");
  CHECK(line.client.await_received("onetwo"));
}

TEST_CASE("reconnector: gives the session up with the server's reason if it refuses") {
  Line line;
  line.cut();
  const Accepted second = line.server.accept_hello();
  hello::HelloReply refusal;
  refusal.status = hello::Status::denied;
  refusal.reason = "the session was ended by an administrator";
  second.answer(refusal);
  CHECK_THAT(line.client.await_failure(),
             ContainsSubstring("; refused: the session was ended by an administrator"));
  CHECK_FALSE(line.client.send("more").get());
  CHECK(line.client.connection().over());
  CHECK_FALSE(line.server.is_asked());
}

TEST_CASE("reconnector: gives the session up if the server has received what was never sent") {
  Line line;
  line.cut();
  const Accepted second = line.server.accept_hello();
  second.resume(6);
  CHECK_THAT(line.client.await_failure(), ContainsSubstring("has received 6 of 5 bytes"));
  CHECK_FALSE(line.server.is_asked());
}

TEST_CASE("reconnector: gives the session up after its time-out, with the reasons") {
  Line line([](Reconnector::Terms& terms) { terms.timeout = milliseconds(200); });
  const auto begun = Clock::now();
  line.server.refuse_connections();
  line.cut();
  CHECK_THAT(line.client.await_failure(), ContainsSubstring("refused"));
  CHECK(Clock::now() - begun >= milliseconds(200));
}

TEST_CASE("reconnector: stops when the session is closed while the connection is broken") {
  Line line;
  line.cut();
  const Accepted second = line.server.accept_hello();
  line.client.connection().close();
  CHECK_THAT(line.client.await_failure(), ContainsSubstring("closed on this side"));
  second.resume(5);
  CHECK(line.client.connection().times_resumed() == 0);
}

TEST_CASE("reconnector: has another thread read while the connection is resumed") {
  struct Seen {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<bool> calls;
  };
  auto& seen = keep(new Seen);  // all of this is never destroyed, as in Client
  const Server server;
  auto& connection = keep(connect_to(server).release());
  auto& reconnector = keep(new Reconnector(connection, [&seen](bool read) {
    const std::lock_guard lock(seen.mutex);
    seen.calls.push_back(read);
    seen.changed.notify_all();
  }));
  std::optional<Accepted> first = server.accept();
  reconnector.start(terms_for(server));
  first.reset();  // the test does not read, so that the break is noticed only by the end of the bytes
  const Accepted second = server.accept_hello();
  second.resume(0);
  const std::vector<bool> expected{true, false, true, false};  // for the last bytes, and while it is resumed
  std::unique_lock lock(seen.mutex);
  CHECK(seen.changed.wait_for(lock, kPatience, [&] { return seen.calls.size() == expected.size(); }));
  CHECK(seen.calls == expected);
  lock.unlock();
  connection.close();
}
