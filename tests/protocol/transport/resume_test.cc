// Connections that continue on another carrier: bytes arrive once and in order, whatever breaks and when.
#include <algorithm>
#include <random>
#include <thread>

#include "common/sanitizers.h"
#include "protocol/transport/resume/resumable_connection.h"
#include "tests/protocol/transport/contract.h"

using namespace gpupool;
using namespace gpupool::transport;
using namespace gpupool::transport::contract;
using Ready = Connection::Ready;

namespace {

constexpr size_t kBytes = (kSanitized ? 4u : 32u) << 20;
constexpr int kCuts = kSanitized ? 20 : 100;

// Both sides of a connection, and how its carriers are made.
class Line {
 public:
  explicit Line(const BackendUnderTest& backend, size_t most_kept = ResumableConnection::kMostKept)
      : backend_(backend) {
    Pair pair = make_pair(backend);
    client = std::make_unique<ResumableConnection>(std::move(pair.client), most_kept);
    server = std::make_unique<ResumableConnection>(std::move(pair.server), most_kept);
    client->start();
    server->start();
  }
  // Repairs the line when either side has noticed a break.
  Result<void> repair() {
    client->break_carrier({ErrorCode::lost, "test"});
    server->break_carrier({ErrorCode::lost, "test"});
    const uint64_t at_client = client->retire_carrier();
    const uint64_t at_server = server->retire_carrier();
    Pair pair = make_pair(backend_);
    Result<void> there;
    std::thread other([&] { there = server->resume(std::move(pair.server), at_client); });
    const auto here = client->resume(std::move(pair.client), at_server);
    other.join();
    return here ? there : here;
  }
  std::unique_ptr<ResumableConnection> client, server;

 private:
  const BackendUnderTest backend_;
};

// A carrier on which there is never room to send.
class FullConnection final : public Connection {
 public:
  Result<size_t> send_some(std::span<const iovec>) override { return size_t{0}; }
  Result<size_t> receive_some(std::span<std::byte>) override { return size_t{0}; }
  Result<Ready> wait(bool, bool, Deadline) override {
    std::this_thread::sleep_for(milliseconds(1));
    return Ready::none;
  }
  void interrupt() override {}
  void close() override {}
  std::string peer() const override { return "full"; }
  int release_descriptor() override { return -1; }
};

// A carrier on which there is always something to receive.
class ReadyConnection final : public Connection {
 public:
  Result<size_t> send_some(std::span<const iovec>) override { return size_t{0}; }
  Result<size_t> receive_some(std::span<std::byte>) override { return size_t{0}; }
  Result<Ready> wait(bool, bool, Deadline) override { return Ready::receive; }
  void interrupt() override {}
  void close() override {}
  std::string peer() const override { return "ready"; }
  int release_descriptor() override { return -1; }
};

// A carrier whose wait() fails late, as of a thread that does not run for some time.
class LateConnection final : public Connection {
 public:
  LateConnection(std::atomic<bool>& entered, const std::atomic<bool>& released)
      : entered_(entered), released_(released) {}
  Result<size_t> send_some(std::span<const iovec>) override { return size_t{0}; }
  Result<size_t> receive_some(std::span<std::byte>) override { return size_t{0}; }
  Result<Ready> wait(bool, bool, Deadline) override {
    entered_ = true;
    while (!released_) std::this_thread::yield();
    return Error{ErrorCode::closed, "closed"};
  }
  void interrupt() override {}
  void close() override {}
  std::string peer() const override { return "late"; }
  int release_descriptor() override { return -1; }

 private:
  std::atomic<bool>& entered_;
  const std::atomic<bool>& released_;
};

BackendUnderTest shared_memory() {
  const auto all = backends();
  const auto shm = std::find_if(all.begin(), all.end(), [](const auto& one) { return one.scheme == "shm"; });
  REQUIRE(shm != all.end());
  return *shm;
}

// Sends `out` in irregular pieces, as far as `allowed`.
Result<void> send_all_of(Connection& connection, const std::vector<std::byte>& out, uint32_t seed,
                         const std::atomic<size_t>& allowed) {
  std::mt19937 random(seed);
  for (size_t at = 0; at < out.size();) {
    const size_t size =
        std::min<size_t>(1 + random() % (random() % 8 == 0 ? 300'000 : 3'000), out.size() - at);
    const iovec piece{const_cast<std::byte*>(out.data() + at), size};
    if (auto sent = send_all(connection, {&piece, 1}, in(kLong)); !sent) return sent;
    at += size;
    while (at > allowed) std::this_thread::yield();
  }
  return {};
}

// Receives as many bytes as `expected` has, in irregular pieces, and acknowledges some of them to the peer.
bool receives(ResumableConnection& connection, ResumableConnection& peer,
              const std::vector<std::byte>& expected, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> got(expected.size());
  for (size_t at = 0; at < got.size();) {
    const size_t size = std::min<size_t>(1 + random() % 100'000, got.size() - at);
    if (!receive_exact(connection, std::span(got).subspan(at, size), in(kLong))) return false;
    at += size;
    if (random() % 4 == 0) peer.acknowledge(connection.received());
  }
  return are_same(got, expected);
}

}  // namespace

TEST_CASE("bytes in shared memory are received after a break without being kept") {
  Line line(shared_memory(), 0);
  for (const char* text : {"first ", "second ", "third "}) {
    REQUIRE(send_text(*line.client, text));
    line.server->break_carrier({ErrorCode::lost, "cut"});
    REQUIRE(line.repair());
  }
  REQUIRE(send_text(*line.client, "last"));
  const std::string whole = "first second third last";
  CHECK(receive_text(*line.server, whole.size()) == whole);
  REQUIRE(send_text(*line.server, "answer"));
  CHECK(receive_text(*line.client, 6) == "answer");
}

TEST_CASE("a descriptor that is lost with its carrier shows as a break, one that is late does not") {
  Line line(shared_memory());
  const auto late = line.server->receive_descriptor(Clock::now());
  REQUIRE_FALSE(late);
  CHECK(late.error().code == ErrorCode::malformed);
  CHECK_FALSE(line.server->broken());
  line.client->break_carrier({ErrorCode::lost, "test"});
  REQUIRE_FALSE(line.server->receive_descriptor(in(kLong)));
  CHECK(line.server->broken());
  REQUIRE(line.repair());
}

TEST_CASE("a side that reads nothing keeps a bounded number of broken carriers") {
  Line line(shared_memory());
  Result<void> repaired;
  int breaks = 0;
  for (; breaks < 100 && repaired; ++breaks) {
    REQUIRE(send_text(*line.client, "unread"));
    line.server->break_carrier({ErrorCode::lost, "cut"});
    repaired = line.repair();
  }
  CHECK(breaks == 33);
  CHECK(repaired.error().message.find("too often") != std::string::npos);
}

TEST_CASE("bytes in both directions survive cuts at random moments") {
  const auto backend = GENERATE(from_range(backends()));
  if (backend.scheme == "rdma") return;
  Line line(backend);
  const auto up = pattern(kBytes, 1), down = pattern(kBytes, 2);
  // Before each cut the senders come as far as the next cut's share.
  constexpr size_t kShare = kBytes / kCuts;
  std::atomic<size_t> allowed{2 * kShare};
  std::atomic<bool> right_up{false}, right_down{false};
  std::vector<std::thread> threads;
  threads.emplace_back([&] { (void)send_all_of(*line.client, up, 3, allowed); });
  threads.emplace_back([&] { (void)send_all_of(*line.server, down, 4, allowed); });
  threads.emplace_back([&] { right_up = receives(*line.server, *line.client, up, 5); });
  threads.emplace_back([&] { right_down = receives(*line.client, *line.server, down, 6); });
  std::mt19937 random(7);
  std::string problem;
  for (int cut = 0; cut < kCuts - 1 && problem.empty(); ++cut) {
    const uint64_t goal = cut * kShare + random() % kShare;
    while (line.server->received() < goal) std::this_thread::yield();
    (random() % 2 == 0 ? *line.client : *line.server).break_carrier({ErrorCode::lost, "cut"});
    if (const auto repaired = line.repair(); !repaired) problem = repaired.error().message;
    allowed += kShare;
  }
  allowed = kBytes;
  if (!problem.empty()) {  // else the threads would wait for another carrier
    line.client->give_up({ErrorCode::lost, problem});
    line.server->give_up({ErrorCode::lost, problem});
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(problem == "");
  CHECK(right_up);
  CHECK(right_down);
}

TEST_CASE("a break blocks both sides until the connection continues") {
  const auto backend = GENERATE(from_range(backends()));
  if (backend.scheme == "rdma") return;
  Line line(backend);
  REQUIRE(send_text(*line.client, "before"));
  REQUIRE(receive_text(*line.server, 6) == "before");
  std::string got;
  std::atomic<bool> reads{false};
  line.client->break_carrier({ErrorCode::lost, "cut"});
  const auto deadline = Clock::now() + milliseconds(500);  // passes during the break, and moves by its length
  std::thread reader([&] {
    reads = true;
    std::string text(6, '\0');
    const auto received = receive_exact(*line.server, std::as_writable_bytes(std::span(text)), deadline);
    got = received ? text : received.error().message;
  });
  CHECK(line.client->wait_for_break()->message == "cut");
  CHECK(line.server->wait_for_break());
  std::byte byte{};
  const iovec one{&byte, 1};
  const auto sent = line.client->send_some({&one, 1});
  REQUIRE(sent);
  CHECK(*sent == 0);
  while (!reads) std::this_thread::yield();
  std::this_thread::sleep_until(deadline + milliseconds(1));
  REQUIRE(line.repair());
  REQUIRE(send_text(*line.client, "behind"));
  reader.join();
  CHECK(got == "behind");
}

TEST_CASE("a connection that was given up or closed fails in all its calls") {
  const auto backend = GENERATE(from_range(backends()));
  if (backend.scheme == "rdma") return;
  Line line(backend);
  line.client->break_carrier({ErrorCode::lost, "cut"});
  Result<void> received;
  std::thread waiter([&] {
    std::byte byte{};
    received = receive_exact(*line.client, {&byte, 1}, std::nullopt);
  });
  line.client->give_up({ErrorCode::lost, "no server for a minute"});
  waiter.join();
  REQUIRE_FALSE(received);
  CHECK(received.error().message == "no server for a minute");
  CHECK_FALSE(line.client->wait_for_break());
  std::byte byte{};
  const iovec one{&byte, 1};
  CHECK_FALSE(line.client->send_some({&one, 1}));
  line.server->close();
  CHECK(line.server->receive_some({&byte, 1}).error().code == ErrorCode::closed);
  CHECK_FALSE(line.repair());
}

TEST_CASE("an interrupt ends a wait for no direction that has begun before a break") {
  Line line(backends().front());
  auto waiting = start_until_asleep([&] { return line.client->wait(false, false, in(kLong)); });
  REQUIRE(line.repair());
  const auto start = Clock::now();
  line.client->interrupt();
  const auto ready = waiting.get();
  REQUIRE(ready);
  CHECK(*ready == Ready::none);
  CHECK(Clock::now() - start < kLong / 2);
}

TEST_CASE(
    "an interrupt ends the wait of the thread that receives, not of the one that sends, also in a break") {
  const bool breaks = GENERATE(false, true);
  Line line(backends().front());
  std::vector<std::byte> sent(breaks ? 0 : fill(*line.client));
  if (breaks) line.client->break_carrier({ErrorCode::lost, "cut"});
  auto sending = start_until_asleep([&] { return line.client->wait(false, true, std::nullopt); });
  line.client->interrupt();
  REQUIRE(sending.wait_for(milliseconds(50)) == std::future_status::timeout);
  const auto start = Clock::now();
  const auto interrupted = line.client->wait(true, false, in(kLong));
  REQUIRE(interrupted);
  CHECK(*interrupted == Ready::none);
  CHECK(Clock::now() - start < kLong / 2);
  if (breaks) REQUIRE(line.repair());
  REQUIRE(receive_exact(*line.server, sent, in(kLong)));
  const auto ready = sending.get();
  REQUIRE(ready);
  CHECK(*ready == Ready::send);
}

TEST_CASE("positions that a side cannot have are refused") {
  const auto backend = backends().front();
  Line line(backend, 1000);
  REQUIRE(send_text(*line.client, std::string(800, 'a')));
  REQUIRE(receive_text(*line.server, 800) == std::string(800, 'a'));
  line.client->break_carrier({ErrorCode::lost, "cut"});
  CHECK_FALSE(line.client->resume(std::move(make_pair(backend).client), 801));
  CHECK_FALSE(line.client->resume(std::move(make_pair(backend).client), ~uint64_t{0}));
  REQUIRE(line.repair());
  line.client->acknowledge(801);
  const std::string more = "b";
  const iovec part = as_iovec(more);
  const auto sent = line.client->send_some({&part, 1});
  REQUIRE_FALSE(sent);
  CHECK(sent.error().code == ErrorCode::malformed);
}

TEST_CASE("an acknowledgement of bytes that are yet to be sent again is refused") {
  Line line(backends().front());
  REQUIRE(send_text(*line.client, std::string(200'000, 'a')));
  line.client->break_carrier({ErrorCode::lost, "cut"});
  std::thread resuming([&] { (void)line.client->resume(std::make_unique<FullConnection>(), 10); });
  while (line.client->broken()) std::this_thread::yield();
  line.client->acknowledge(200'000);
  const std::string more = "b";
  const iovec part = as_iovec(more);
  const auto sent = line.client->send_some({&part, 1});
  line.client->close();
  resuming.join();
  REQUIRE_FALSE(sent);
  CHECK(sent.error().code == ErrorCode::malformed);
}

TEST_CASE("a thread that still waits for a broken carrier does not break the next one") {
  std::atomic<bool> entered{false}, released{false}, over{false};
  ResumableConnection connection(std::make_unique<LateConnection>(entered, released));
  connection.start();
  std::thread waiting([&] {
    const auto ready = connection.wait(true, false, in(kLong));
    over = ready && *ready == Ready::receive;
  });
  while (!entered) std::this_thread::yield();
  connection.break_carrier({ErrorCode::lost, "cut"});
  REQUIRE(connection.resume(std::make_unique<ReadyConnection>(), 0));
  released = true;
  while (!over && !connection.broken()) std::this_thread::yield();
  CHECK_FALSE(connection.broken());
  connection.close();
  waiting.join();
}

TEST_CASE("a connection with too many unacknowledged bytes cannot be resumed before their end") {
  const auto backend = backends().front();
  Line line(backend, 1000);
  REQUIRE(send_text(*line.client, std::string(1001, 'a')));
  REQUIRE(receive_text(*line.server, 1000).size() == 1000);
  const auto repaired = line.repair();
  REQUIRE_FALSE(repaired);
  CHECK(repaired.error().message.find("received 1000 of 1001 bytes") != std::string::npos);
}
