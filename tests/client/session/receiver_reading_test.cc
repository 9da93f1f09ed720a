// Tests reading by threads that wait for no reply: bounded, and with waits for what a message changes.
#include <atomic>
#include <future>

#include "client/session/receiver.h"
#include "tests/client/memory_connection.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::client;
using gpupool::client::test::MemoryConnection;
using namespace std::chrono_literals;
using transport::Clock;

namespace {

// A receiver whose timeline messages call `on_message`. Never destroyed: its background thread may still use
// it.
struct Line {
  MemoryConnection connection;
  std::function<void()> on_message = [] {};
  std::atomic<int> messages{0};
  Receiver receiver{connection,
                    60s,
                    {.ping = [] {},
                     .host_callback = [](uint64_t, uint64_t, CUresult) {},
                     .retired = [](uint64_t) {},
                     .failed = [](const Error&) {},
                     .timeline_received =
                         [this](std::span<const std::byte>) {
                           ++messages;
                           on_message();
                           return true;
                         }}};

  static Line& make() { return *new Line; }
  void feed() {
    wire::MessageHeader header;
    header.kind = wire::MessageKind::timeline;
    connection.feed(header);
  }
};

}  // namespace

TEST_CASE("receiver: a server that sends without end does not hold a thread that only looks") {
  Line& line = Line::make();
  constexpr int kMuch = 100'000;  // so that the test ends, too
  line.on_message = [&line] {
    if (line.messages < kMuch) line.feed();
  };
  line.feed();
  line.receiver.read_some();
  CHECK(line.messages == static_cast<int>(Receiver::kMostReads));
  line.receiver.read_some();
  CHECK(line.messages == 2 * static_cast<int>(Receiver::kMostReads));
}

TEST_CASE("receiver: a wait for what a message changes ends with the message") {
  Line& line = Line::make();
  std::atomic<bool> changed{false};
  line.on_message = [&] {
    changed = true;
    line.receiver.wake();
  };
  CHECK(!line.receiver.await([&] { return changed.load(); }, Clock::now() + 10ms));
  auto waited = std::async(std::launch::async, [&] {
    return line.receiver.await([&] { return changed.load(); }, Clock::now() + 60s);
  });
  line.feed();
  CHECK(waited.get());
}

TEST_CASE("receiver: a wait for what a message changes ends with the session") {
  Line& line = Line::make();
  auto waited = std::async(std::launch::async,
                           [&] { return line.receiver.await([] { return false; }, Clock::now() + 60s); });
  line.receiver.fail();
  CHECK(!waited.get());
}
