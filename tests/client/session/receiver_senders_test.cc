// Tests senders that wait for room: whoever waits reads what the server sends, or it would stop reading too.
#include <chrono>
#include <future>

#include "tests/client/session/receiver_line.h"
#include "tests/support/asleep.h"
#include "tests/support/catch.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::client;
using namespace gpupool::client::test;
using gpupool::testing::eventually;
using gpupool::testing::kPatience;
using gpupool::testing::start_until_asleep;
using std::chrono::milliseconds;
using transport::Clock;
using wire::MessageKind;

namespace {

// A connection without room, and a thread that receives until its reply is there.
struct Blocked {
  Blocked() { line.connection.set_room(0); }
  void end_reader() {
    line.message(MessageKind::reply, 1);
    reader.get();
  }
  // Starts another thread, and returns when that sleeps.
  std::future<bool> start_sender() const {
    return start_until_asleep([this] { return line.receiver.wait_for_room(Clock::now() + kNever); });
  }
  Line& line = Line::make();
  Awaited waiter{line, 1};
  std::future<bool> reader = start_until_asleep([this] { return line.receiver.wait(waiter); });
};

}  // namespace

TEST_CASE("receiver: a sender without room reads once the thread that read has its reply") {
  Blocked blocked;
  MemoryConnection& connection = blocked.line.connection;
  auto sender = blocked.start_sender();
  blocked.end_reader();
  blocked.line.message(MessageKind::pong, 0);
  CHECK(eventually([&] { return connection.unread() == 0; }));
  connection.set_room(MemoryConnection::kUnlimited);
  CHECK(sender.get());
  CHECK(blocked.line.failed() == 0);
}

TEST_CASE("receiver: a sender waits for room until its deadline while another thread reads") {
  Blocked blocked;
  constexpr milliseconds kShort{120};
  const auto start = Clock::now();
  CHECK_FALSE(blocked.line.receiver.wait_for_room(start + kShort));
  CHECK(Clock::now() - start >= kShort);
  CHECK(blocked.line.failed() == 0);
  blocked.line.connection.set_room(1);
  CHECK(blocked.line.receiver.wait_for_room(Clock::now() + kNever));
  blocked.end_reader();
}

TEST_CASE("receiver: a sender without room ends with the session") {
  Blocked blocked;
  auto sender = blocked.start_sender();
  blocked.line.receiver.fail();  // whoever ends it closes the connection later
  CHECK(sender.wait_for(kPatience) == std::future_status::ready);
  CHECK_FALSE(sender.get());
  blocked.end_reader();
}
