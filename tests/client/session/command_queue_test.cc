// Tests the queue of commands: what is sent when and in which order, and what happens if the connection
// fails.
#include "client/session/command_queue.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <thread>

#include "tests/client/memory_connection.h"
#include "tests/support/catch.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::client;
using gpupool::client::test::MemoryConnection;
using gpupool::testing::eventually;

namespace {

// With kQuiet the sender flushes itself, so the flusher is not woken.
constexpr uint16_t kId = 77, kQuiet = wire::kWantsReply;

// A queue and a record of its callbacks. Never destroyed, as in a program, because its flusher thread may
// still use it.
struct Line {
  MemoryConnection connection;
  std::mutex mutex;
  std::vector<std::string> failures;
  std::vector<size_t> waits;  // bytes sent when there was no room
  bool gives_room = true;
  CommandQueue queue;

  static Line& make() { return *(new Line); }
  uint64_t append(const std::string& body, uint16_t flags = kQuiet) {
    uint64_t number = 0;
    queue.append(
        kId, flags, 5, [&](wire::Writer& writer) { writer.put_bytes(body.data(), body.size()); },
        [&](uint64_t sequence) { number = sequence; });
    return number;
  }

 private:
  Line()
      : queue(connection, std::chrono::seconds(1),
              {.wait_for_room =
                   [this](transport::Deadline) {
                     waits.push_back(connection.sent().size());
                     if (gives_room) connection.set_room(100, 7);
                     return gives_room;
                   },
               .failed =
                   [this](const Error& error) {
                     const std::lock_guard lock(mutex);
                     failures.push_back(error.message);
                   }}) {}
};

struct Command {
  wire::CommandHeader header;
  std::string body;
};
std::vector<Command> commands(const std::vector<std::byte>& bytes) {
  std::vector<Command> all;
  for (size_t at = 0; at < bytes.size();) {
    Command command;
    REQUIRE(bytes.size() - at >= sizeof command.header);
    std::memcpy(&command.header, bytes.data() + at, sizeof command.header);
    at += sizeof command.header;
    REQUIRE(bytes.size() - at >= command.header.length);
    command.body.assign(reinterpret_cast<const char*>(bytes.data() + at), command.header.length);
    at += command.header.length;
    all.push_back(std::move(command));
  }
  return all;
}

bool send_bulk(Line& line, uint16_t head, std::string payload) {
  const size_t half = payload.size() / 2;
  const iovec parts[] = {{payload.data(), half}, {payload.data() + half, payload.size() - half}};
  return line.queue.send_bulk(kId, 0, 5, head, parts, [](uint64_t) {});
}

}  // namespace

TEST_CASE("command queue: sends everything in order at a flush and nothing before") {
  Line& line = Line::make();
  CHECK(line.append("first") == 1);
  CHECK(line.append("") == 2);
  CHECK(line.append("third") == 3);
  CHECK(line.connection.sent().empty());
  CHECK(line.queue.flush());
  CHECK(line.connection.sends() == 1);
  const auto sent = commands(line.connection.sent());
  REQUIRE(sent.size() == 3);
  const char* const bodies[] = {"first", "", "third"};
  for (size_t i = 0; i < 3; ++i) {
    CHECK(sent[i].body == bodies[i]);
    CHECK(sent[i].header.sequence == i + 1);
    CHECK(sent[i].header.id == kId);
    CHECK(sent[i].header.flags == kQuiet);
    CHECK(sent[i].header.context == 5);
  }
}

TEST_CASE("command queue: sends a command without a waiter soon and without a flush") {
  Line& line = Line::make();
  for (int i = 1; i <= 3; ++i) {
    line.append("soon", 0);
    CHECK(eventually([&] { return commands(line.connection.sent()).size() == static_cast<size_t>(i); }));
  }
}

TEST_CASE("command queue: a bulk command follows appended commands and its length counts the payload") {
  Line& line = Line::make();
  line.append("before");
  CHECK(send_bulk(line, 0x4241, "payload"));
  line.append("after");
  CHECK(line.queue.flush());
  const auto sent = commands(line.connection.sent());
  REQUIRE(sent.size() == 3);
  CHECK(sent[0].body == "before");
  CHECK(sent[1].body == "ABpayload");
  CHECK(sent[1].header.sequence == 2);
  CHECK(sent[2].body == "after");
}

TEST_CASE("command queue: partial sends neither lose nor repeat bytes") {
  Line& line = Line::make();
  line.connection.set_room(50, 7);
  std::string payload(300, 'p');
  std::iota(payload.begin(), payload.end(), ' ');
  line.append(std::string(200, 'x'));
  CHECK(send_bulk(line, 0x4241, payload));
  CHECK(line.waits.size() >= 4);
  CHECK(line.waits.front() == 50);
  const auto sent = commands(line.connection.sent());
  REQUIRE(sent.size() == 2);
  CHECK(sent[0].body == std::string(200, 'x'));
  CHECK(sent[1].body == "AB" + payload);
}

TEST_CASE("command queue: a thread that has appended too much flushes the queue itself") {
  Line& line = Line::make();
  const std::string body(100 * 1024, 'b');
  for (int i = 0; i < 5; ++i) line.append(body);
  CHECK(line.connection.sent().empty());
  line.append(body);
  CHECK(commands(line.connection.sent()).size() == 6);
}

TEST_CASE("command queue: numbers commands of many threads without gaps and in each thread's order") {
  Line& line = Line::make();
  constexpr int kThreads = 4, kEach = 500;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        line.append(std::to_string(t) + " " + std::to_string(i), i % 2 ? kQuiet : uint16_t{0});
        if (i % 50 == 0) line.queue.flush();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(line.queue.flush());
  const auto sent = commands(line.connection.sent());
  REQUIRE(sent.size() == kThreads * kEach);
  int next[kThreads] = {};
  for (size_t i = 0; i < sent.size(); ++i) {
    REQUIRE(sent[i].header.sequence == i + 1);
    int thread = -1, number = -1;
    REQUIRE(std::sscanf(sent[i].body.c_str(), "%d %d", &thread, &number) == 2);
    REQUIRE(number == next[thread]++);
  }
}

TEST_CASE("command queue: reports a failed connection once and sends nothing afterwards") {
  Line& line = Line::make();
  line.append("lost");
  line.connection.fail({ErrorCode::lost, "cut"});
  CHECK_FALSE(line.queue.flush());
  line.append("never sent");
  CHECK_FALSE(line.queue.flush());
  CHECK_FALSE(send_bulk(line, 1, "nor this"));
  CHECK(line.failures == std::vector<std::string>{"cut"});
  CHECK(line.connection.sent().empty());
}

TEST_CASE("command queue: fails if the peer takes no data before the timeout") {
  Line& line = Line::make();
  line.gives_room = false;
  line.connection.set_room(10);
  line.append("does not fit");
  CHECK_FALSE(line.queue.flush());
  CHECK(line.failures == std::vector<std::string>{"the server stopped reading (timeout while sending)"});
}
