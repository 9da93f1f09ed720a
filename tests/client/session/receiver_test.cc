// Tests the receiving half of a session: messages reach their waiters, data its destination, and all waits
// end with the session.
#include "client/session/receiver.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <numeric>
#include <string>
#include <thread>

#include "tests/client/session/receiver_line.h"
#include "tests/support/catch.h"
#include "tests/support/hostile_text.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::client;
using namespace gpupool::client::test;
using gpupool::testing::eventually;
using gpupool::testing::is_harmless;
using gpupool::testing::kHostileText;
using std::chrono::milliseconds;
using wire::MessageKind;

namespace {

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

TEST_CASE("receiver: delivers a reply to its waiter with result and body") {
  Line& line = Line::make();
  Awaited first(line, 1), second(line, 2);
  line.message(MessageKind::reply, 2, "two", CUDA_ERROR_INVALID_VALUE);
  line.message(MessageKind::pong, 0);
  line.message(MessageKind::reply, 1, "one");
  line.message(MessageKind::reply, 99, "nobody's");
  CHECK(line.receiver.wait(first));
  CHECK(first.text() == "one");
  CHECK(first.result == CUDA_SUCCESS);
  CHECK(second.done);
  CHECK(line.receiver.wait(second));
  CHECK(second.text() == "two");
  CHECK(second.result == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("receiver: accepts messages byte by byte and larger than its buffer") {
  Line& line = Line::make();
  line.connection.receive_at_most(GENERATE(size_t{1}, size_t{1000}, MemoryConnection::kUnlimited));
  Awaited small(line, 1), large(line, 2), last(line, 3);
  const std::string body(300'000, 'L');
  line.message(MessageKind::reply, 1, "small");
  line.message(MessageKind::reply, 2, body);
  line.message(MessageKind::reply, 3, "last");
  CHECK(line.receiver.wait(last));
  CHECK(small.text() == "small");
  CHECK(large.text() == body);
  CHECK(last.text() == "last");
}

TEST_CASE("receiver: concurrent waiters each get their own reply") {
  Line& line = Line::make();
  constexpr uint64_t kThreads = 8;
  std::atomic<int> right{0};
  std::vector<std::unique_ptr<Awaited>> waiters;
  std::vector<std::thread> threads;
  for (uint64_t i = 1; i <= kThreads; ++i) {
    waiters.push_back(std::make_unique<Awaited>(line, i));
    threads.emplace_back([&, i, waiter = waiters.back().get()] {
      if (line.receiver.wait(*waiter) && waiter->text() == std::to_string(i)) ++right;
    });
  }
  for (uint64_t i = kThreads; i > 0; --i) line.message(MessageKind::reply, i, std::to_string(i));
  for (auto& thread : threads) thread.join();
  CHECK(right == kThreads);
}

TEST_CASE("receiver: writes a copy's data only to its rows") {
  Line& line = Line::make();
  line.connection.receive_at_most(GENERATE(size_t{5}, MemoryConnection::kUnlimited));
  std::vector<std::byte> memory(3 * 10, std::byte{'.'});
  line.receiver.expect_transfer(7, {.destination = memory.data(), .pitch = 10, .width = 4, .rows = 3});
  Awaited waiter(line, 7);
  line.data(7, 6, "CDefgh");
  line.data(7, 0, "1234AB");
  line.message(MessageKind::reply, 7);
  CHECK(line.receiver.wait(waiter));
  CHECK(text_of(memory) == "1234......ABCD......efgh......");
}

TEST_CASE("receiver: receives large data directly to its destination") {
  Line& line = Line::make();
  std::string bytes(200'000, 0);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 + i / 256);
  std::vector<std::byte> memory(bytes.size());
  line.receiver.expect_transfer(
      7, {.destination = memory.data(), .pitch = bytes.size(), .width = bytes.size(), .rows = 1});
  Awaited waiter(line, 7);
  line.data(7, 0, bytes);
  line.message(MessageKind::reply, 7);
  CHECK(line.receiver.wait(waiter));
  CHECK(text_of(memory) == bytes);
}

TEST_CASE("receiver: data outside a copy ends the session and writes nothing") {
  Line& line = Line::make();
  std::vector<std::byte> memory(16, std::byte{'.'});
  line.receiver.expect_transfer(7, {.destination = memory.data(), .pitch = 8, .width = 8, .rows = 1});
  Awaited waiter(line, 7);
  SECTION("past its end") {
    line.data(7, 4, "12345");
  }
  SECTION("from an offset that wraps around") {
    line.data(7, ~uint64_t{0} - 1, "1234");
  }
  SECTION("of an unknown copy") {
    line.data(8, 0, "1234");
  }
  CHECK_FALSE(line.receiver.wait(waiter));
  REQUIRE(line.failed() == 1);
  CHECK(line.failures[0].code == ErrorCode::malformed);
  CHECK(text_of(memory) == std::string(16, '.'));
}

TEST_CASE("receiver: device data that is too short for its offset ends the session") {
  Line& line = Line::make();
  Awaited waiter(line, 1);
  line.message(MessageKind::device_data, 1, GENERATE("", "1234567"));
  line.message(MessageKind::reply, 1);
  CHECK_FALSE(line.receiver.wait(waiter));
  REQUIRE(line.failed() == 1);
  CHECK(line.failures[0].code == ErrorCode::malformed);
  CHECK(line.failures[0].message == "protocol error: data without an offset");
}

TEST_CASE("receiver: malformed messages end the session") {
  Line& line = Line::make();
  Awaited waiter(line, 1);
  SECTION("an unknown kind") {
    line.message(static_cast<MessageKind>(99), 1);
  }
  SECTION("a body above the limit") {
    wire::MessageHeader header;
    header.length = wire::kMaxBodyBytes + 1;
    line.connection.feed(header);
  }
  SECTION("a callback without its id") {
    line.message(MessageKind::host_callback, 0, "1234");
  }
  CHECK_FALSE(line.receiver.wait(waiter));
  REQUIRE(line.failed() == 1);
  CHECK(line.failures[0].code == ErrorCode::malformed);
}

TEST_CASE("receiver: an end message ends every wait and gives the reason") {
  Line& line = Line::make();
  Awaited first(line, 1), second(line, 2);
  std::vector<CUresult> heard;
  line.receiver.expect(3, [&](CUresult result) { heard.push_back(result); });
  line.message(MessageKind::end, 0, "killed by an administrator");
  CHECK_FALSE(line.receiver.wait(first));
  CHECK_FALSE(line.receiver.wait(second));
  REQUIRE(line.failed() == 1);
  CHECK(line.failures[0].code == ErrorCode::refused);
  CHECK(line.failures[0].message == "the server ended the session: killed by an administrator");
  CHECK(eventually([&] { return heard == std::vector{CUDA_ERROR_DEVICE_UNAVAILABLE}; }));
  Awaited late(line, 4);
  CHECK_FALSE(line.receiver.wait(late));
  line.receiver.expect(5, [&](CUresult result) { heard.push_back(result); });
  CHECK(heard.size() == 2);
}

TEST_CASE("the reason for a session's end is printable and has a length limit") {
  Line& line = Line::make();
  Awaited waiter(line, 1);
  line.message(MessageKind::end, 0, kHostileText + std::string(60'000, 'x'));
  CHECK_FALSE(line.receiver.wait(waiter));
  REQUIRE(line.failed() == 1);
  CHECK(is_harmless(line.failures[0].message));
  CHECK(line.failures[0].message.size() < 2048);
}

TEST_CASE("prints an assertion's text on stderr without control characters") {
  Line& line = Line::make();
  Awaited waiter(line, 1);
  int pipe[2];
  REQUIRE(::pipe2(pipe, O_CLOEXEC) == 0);
  const int before = ::dup(STDERR_FILENO);
  ::dup2(pipe[1], STDERR_FILENO);
  line.message(MessageKind::standard_error, 0, "größe.cu:7: Assertion `x` failed.\n" + kHostileText + "\n");
  line.message(MessageKind::reply, 1);
  const bool answered = line.receiver.wait(waiter);
  ::dup2(before, STDERR_FILENO);
  ::close(before);
  ::close(pipe[1]);
  CHECK(answered);
  char text[512];
  const ssize_t length = ::read(pipe[0], text, sizeof text);
  ::close(pipe[0]);
  REQUIRE(length > 0);
  const std::string written(text, static_cast<size_t>(length));
  CHECK(written.starts_with("größe.cu:7: Assertion `x` failed.\n?]0;owned?"));
  CHECK(is_harmless(written));
}

TEST_CASE("receiver: pings a silent server and gives it up after the timeout") {
  Line& line = Line::make(milliseconds(300));
  Awaited waiter(line, 1);
  const auto start = transport::Clock::now();
  CHECK_FALSE(line.receiver.wait(waiter));
  CHECK(transport::Clock::now() - start >= milliseconds(300));
  CHECK(line.pings >= 2);
  REQUIRE(line.failed() == 1);
  CHECK(line.failures[0].code == ErrorCode::lost);
  CHECK(line.failures[0].message.find("GPUPOOL_DEAD_PEER_TIMEOUT_MS") != std::string::npos);
}

TEST_CASE("receiver: gives up a silent server in the background and while threads wait") {
  constexpr milliseconds kTimeout{600};
  Line& line = Line::make(kTimeout);
  SECTION("for a reply without a waiter") {
    std::atomic<bool> heard{false};
    line.receiver.expect(1, [&](CUresult result) { heard = result == CUDA_ERROR_DEVICE_UNAVAILABLE; });
    CHECK(eventually([&] { return heard.load(); }));
  }
  SECTION("for a waiter while the background thread receives") {
    line.receiver.add_interest();
    std::this_thread::sleep_for(kTimeout);  // silence without a waiter does not count
    Awaited waiter(line, 1);
    const auto start = transport::Clock::now();
    std::atomic<bool> over{false};
    std::thread waiting([&] { line.receiver.wait(waiter), over = true; });
    CHECK(eventually([&] { return over.load(); }));
    if (!over) line.receiver.fail();
    waiting.join();
    CHECK(transport::Clock::now() - start >= kTimeout);
  }
  CHECK(line.pings >= 2);
  REQUIRE(line.failed() == 1);
  CHECK(line.failures[0].code == ErrorCode::lost);
}

TEST_CASE("receiver: a program stopped for longer than the timeout pings before it gives up the server") {
  Line& line = Line::make(milliseconds(300));
  line.answer = [&] { line.message(MessageKind::reply, 1, "", CUDA_ERROR_NOT_READY); };
  line.connection.oversleep(milliseconds(400));
  SECTION("while it waited") {
    Awaited waiter(line, 1);
    CHECK(line.receiver.wait(waiter));
    CHECK(waiter.result == CUDA_ERROR_NOT_READY);
  }
  SECTION("while the background thread waited") {
    std::atomic<int> heard{-1};
    line.receiver.expect(1, [&](CUresult result) { heard = result; });
    CHECK(eventually([&] { return heard == CUDA_ERROR_NOT_READY; }));
  }
  CHECK(line.pings == 1);
  CHECK(line.failed() == 0);
}

TEST_CASE("receiver: handles a reply without a waiter in the background") {
  Line& line = Line::make();
  std::atomic<int> heard{-1};
  line.receiver.expect(3, [&](CUresult result) { heard = result; });
  line.message(MessageKind::reply, 3, "", CUDA_ERROR_NOT_READY);
  CHECK(eventually([&] { return heard == CUDA_ERROR_NOT_READY; }));
}

TEST_CASE("receiver: receives a copy without a waiter in the background") {
  Line& line = Line::make();
  std::vector<std::byte> memory(8, std::byte{'.'});
  line.receiver.expect_transfer(
      7, {.destination = memory.data(), .pitch = 8, .width = 8, .rows = 1, .background = true});
  CHECK(line.receiver.transfers_pending());
  CHECK(line.receiver.awaits_data_in(memory.data() + 7, 1));
  CHECK_FALSE(line.receiver.awaits_data_in(memory.data() + 8, 1));
  line.data(7, 0, "12345678");
  line.message(MessageKind::reply, 7);
  CHECK(eventually([&] { return !line.receiver.transfers_pending(); }));
  CHECK(text_of(memory) == "12345678");
}

TEST_CASE("receiver: calls host functions while they are expected") {
  Line& line = Line::make();
  line.receiver.add_interest();
  const auto text = [](uint64_t callback) {
    return std::string(reinterpret_cast<const char*>(&callback), sizeof callback);
  };
  line.message(MessageKind::host_callback, 7, text(42));
  line.message(MessageKind::host_callback, 8, text(0), CUDA_ERROR_LAUNCH_FAILED);
  const std::vector<std::array<uint64_t, 3>> expected{{42, 7, 0}, {0, 8, CUDA_ERROR_LAUNCH_FAILED}};
  CHECK(eventually([&] {
    const std::lock_guard lock(line.mutex);
    return line.callbacks == expected;
  }));
  line.receiver.drop_interest();
}

TEST_CASE("receiver: reads retired frees and the memory limit flag from every message") {
  Line& line = Line::make();
  Awaited first(line, 1);
  line.message(MessageKind::reply, 1, "", CUDA_SUCCESS, 12, wire::kMemoryLimited);
  CHECK(line.receiver.wait(first));
  CHECK(line.retired == std::vector<uint64_t>{12});
  CHECK(line.receiver.memory_limited());
  Awaited second(line, 2);
  line.message(MessageKind::reply, 2);
  CHECK(line.receiver.wait(second));
  CHECK(line.retired.size() == 1);
  CHECK_FALSE(line.receiver.memory_limited());
}

TEST_CASE("receiver: accepts each piece of a bulk copy once and only at its offset") {
  Line& line = Line::make();
  const uint64_t bytes = wire::kBulkChunkBytes + 100, piece = wire::bulk_piece_bytes(bytes, 1);
  std::vector<std::byte> memory(bytes);
  line.receiver.expect_transfer(7, {.destination = memory.data(),
                                    .pitch = bytes,
                                    .width = bytes,
                                    .rows = 1,
                                    .bulk = true,
                                    .missing = bytes});
  CHECK_FALSE(line.receiver.begin_piece(8, 0));
  CHECK_FALSE(line.receiver.begin_piece(7, 1));
  CHECK_FALSE(line.receiver.begin_piece(7, bytes));
  for (uint64_t at = 0; at < bytes; at += piece) {
    const auto transfer = line.receiver.begin_piece(7, at);
    REQUIRE(transfer);
    CHECK(transfer->piece_at(at) == std::min(piece, bytes - at));
    line.receiver.end_piece(7, transfer->piece_at(at));
  }
  CHECK_FALSE(line.receiver.begin_piece(7, 0));  // already complete
}

TEST_CASE("receiver: delivers the reply to a bulk copy after all its pieces") {
  Line& line = Line::make();
  const uint64_t bytes = 2 * wire::kBulkChunkBytes, piece = wire::bulk_piece_bytes(bytes, 1);
  std::vector<std::byte> memory(bytes);
  line.receiver.expect_transfer(7, {.destination = memory.data(),
                                    .pitch = bytes,
                                    .width = bytes,
                                    .rows = 1,
                                    .bulk = true,
                                    .missing = bytes});
  Awaited waiter(line, 7);
  line.message(MessageKind::reply, 7);
  std::atomic<uint64_t> there{0};
  std::thread links([&] {
    for (uint64_t at = 0; at < bytes && line.receiver.begin_piece(7, at); at += piece) {
      std::this_thread::yield();
      there += piece;
      line.receiver.end_piece(7, piece);
    }
  });
  CHECK(line.receiver.wait(waiter));
  CHECK(there == bytes);
  links.join();
}

TEST_CASE("receiver: waits of a failed session end only once nothing is written any more") {
  Line& line = Line::make();
  std::vector<std::byte> memory(100);
  line.receiver.expect_transfer(
      7, {.destination = memory.data(), .pitch = 100, .width = 100, .rows = 1, .bulk = true, .missing = 100});
  Awaited waiter(line, 7);
  REQUIRE(line.receiver.begin_piece(7, 0));
  line.message(MessageKind::end, 0, "over");
  std::atomic<bool> over{false}, good{true};
  std::thread waiting([&] {
    good = line.receiver.wait(waiter);
    over = true;
  });
  line.receiver.await_failure(transport::Clock::now() + kNever);
  CHECK_FALSE(eventually([&] { return over.load(); }, milliseconds(50)));
  line.receiver.end_piece(7, 100);
  waiting.join();
  CHECK_FALSE(good);
}
