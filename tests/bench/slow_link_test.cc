// SlowLink delivers all data in order, not before and not much after the configured delay, and limits the
// bandwidth.
#include "tests/support/slow_link.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::testing;
using std::chrono::microseconds;
using std::chrono::milliseconds;

namespace {

using Clock = transport::Clock;
constexpr std::chrono::seconds kLong{60};

// An echo server for `count` connections.
class Echo {
 public:
  explicit Echo(int count) : listener_(std::move(*transport::listen({"tcp", "127.0.0.1", 0}, {}))) {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this] {
        auto connection = listener_->accept(Clock::now() + kLong);
        if (!connection) return;
        std::vector<std::byte> buffer(64 * 1024);
        while (true) {
          const auto received = (*connection)->receive_some(buffer);
          if (!received) return;
          if (*received == 0) {
            if (!(*connection)->wait(true, false, Clock::now() + kLong)) return;
            continue;
          }
          const iovec part{buffer.data(), *received};
          if (!transport::send_all(**connection, {&part, 1}, Clock::now() + kLong)) return;
        }
      });
    }
  }
  ~Echo() {
    listener_->close();
    for (std::thread& thread : threads_) thread.join();
  }
  transport::Endpoint endpoint() const { return listener_->endpoint(); }

 private:
  std::unique_ptr<transport::Listener> listener_;
  std::vector<std::thread> threads_;
};

std::unique_ptr<transport::Connection> connect_to(const SlowLink& link) {
  auto connection = transport::connect(*transport::Endpoint::parse(link.url()), {});
  REQUIRE(connection);
  return std::move(*connection);
}

// Sends `bytes` to the echo server while receiving them. Returns true if they come back unchanged.
bool there_and_back(transport::Connection& connection, size_t bytes, unsigned seed) {
  std::vector<std::byte> out(bytes), in(bytes);
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>((i * 31 + i / 257 + seed) & 0xff);
  std::thread sender([&] {
    const iovec part{out.data(), out.size()};
    (void)transport::send_all(connection, {&part, 1}, Clock::now() + kLong);
  });
  const bool received = transport::receive_exact(connection, in, Clock::now() + kLong).ok();
  sender.join();
  return received && in == out;
}

}  // namespace

TEST_CASE("a message over the slow link takes about one round-trip time") {
  for (const auto round_trip : {microseconds(50), microseconds(200), microseconds(10'000)}) {
    Echo echo(1);
    SlowLink link(echo.endpoint(), {.round_trip = round_trip});
    const auto connection = connect_to(link);
    std::vector<microseconds> times;
    for (unsigned i = 0; i < 30; ++i) {
      const auto begin = Clock::now();
      REQUIRE(there_and_back(*connection, 100, i));
      times.push_back(std::chrono::duration_cast<microseconds>(Clock::now() - begin));
    }
    CHECK(*std::min_element(times.begin(), times.end()) >= round_trip);
    CHECK(*std::min_element(times.begin(), times.end()) < round_trip + milliseconds(5));
  }
}

TEST_CASE("the slow link delivers all bytes in order on every connection") {
  constexpr int kConnections = 4;
  constexpr size_t kBytes = 8u << 20;
  Echo echo(kConnections);
  SlowLink link(echo.endpoint(), {.round_trip = milliseconds(20)});
  std::vector<std::unique_ptr<transport::Connection>> connections;
  for (int i = 0; i < kConnections; ++i) connections.push_back(connect_to(link));
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kConnections; ++i) {
    threads.emplace_back(
        [&, i] { good += there_and_back(*connections[i], kBytes, static_cast<unsigned>(i)); });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(good == kConnections);
  CHECK(link.bytes_up() == kConnections * kBytes);
  CHECK(link.bytes_down() == kConnections * kBytes);
}

TEST_CASE("connections share the bandwidth of the slow link") {
  constexpr size_t kBytes = 4u << 20;
  Echo echo(2);
  SlowLink link(echo.endpoint(), {.round_trip = milliseconds(1), .bytes_per_second = 50e6});
  const auto one = connect_to(link), other = connect_to(link);
  const auto begin = Clock::now();
  bool good = false;
  std::thread thread([&] { good = there_and_back(*other, kBytes, 1); });
  CHECK(there_and_back(*one, kBytes, 2));
  thread.join();
  CHECK(good);
  CHECK(Clock::now() - begin >= milliseconds(160));  // 8 MiB at 50 MB/s
}
