// Tests that a server's times are converted within the error that the timeline tells.
#include "client/timeline/clock_alignment.h"

#include <cstdlib>
#include <random>

#include "tests/support/catch.h"

using gpupool::client::timeline::ClockAlignment;

namespace {

constexpr int64_t kSecond = 1'000'000'000;

// A server whose clock is ahead by `offset`, and faster by `drift`.
struct Server {
  int64_t offset = 0;
  double drift = 0;
  int64_t at(int64_t local) const {
    return local + offset + static_cast<int64_t>(static_cast<double>(local) * drift);
  }
};

// A round trip whose ways take so long.
void read(ClockAlignment& clock, const Server& server, int64_t sent, int64_t there, int64_t back) {
  clock.add(sent, server.at(sent + there), server.at(sent + there + 1000), sent + there + 1000 + back);
}

}  // namespace

TEST_CASE("a symmetric round trip tells the offset") {
  ClockAlignment clock;
  CHECK(!clock.known());
  const Server server{.offset = -77 * kSecond};
  read(clock, server, 5 * kSecond, 40'000, 40'000);
  REQUIRE(clock.known());
  CHECK(clock.offset() == server.offset);
  CHECK(clock.to_local(server.at(6 * kSecond)) == 6 * kSecond);
  CHECK(clock.error(5 * kSecond) <= 41'000);
}

TEST_CASE("times are within the told error whatever delays the messages") {
  const double drift = GENERATE(-90e-6, 0.0, 90e-6);
  const Server server{.offset = 123'456'789'012, .drift = drift};
  ClockAlignment clock;
  std::mt19937 random(1);
  std::exponential_distribution<double> delay(1.0 / 200'000);
  for (int64_t now = kSecond; now < 300 * kSecond; now += kSecond) {
    read(clock, server, now, 20'000 + static_cast<int64_t>(delay(random)),
         20'000 + static_cast<int64_t>(delay(random)));
    const int64_t later = now + kSecond / 2;
    const int64_t wrong = std::llabs(clock.to_local(server.at(later)) - later);
    INFO(now << ": wrong by " << wrong << ", told " << clock.error(later));
    CHECK(wrong <= clock.error(later) + 1);
    CHECK(clock.error(later) < 20 * 200'000);
  }
}

TEST_CASE("many readings are better than the best one alone") {
  const Server server{.offset = kSecond};
  ClockAlignment one, two;
  read(one, server, kSecond, 10'000, 500'000);
  read(two, server, kSecond, 10'000, 500'000);
  read(two, server, kSecond + 1'000'000, 500'000, 10'000);
  CHECK(two.error(kSecond + 3'000'000) < one.error(kSecond + 3'000'000) / 4);
}

TEST_CASE("impossible readings are ignored") {
  ClockAlignment clock;
  clock.add(1000, 500, 400, 2000);  // the answer was sent before the question was received
  clock.add(2000, 500, 600, 1000);  // received before it was sent
  clock.add(1000, 0, 5000, 2000);   // the server took longer than the round trip
  CHECK(!clock.known());
  read(clock, {.offset = 7}, kSecond, 10, 10);
  const int64_t offset = clock.offset();
  clock.add(kSecond + 10, 0, kSecond * 9, kSecond + 20);
  CHECK(clock.offset() == offset);
}

TEST_CASE("another clock begins anew") {
  ClockAlignment clock;
  read(clock, {.offset = kSecond}, kSecond, 10, 10);
  clock.restart();
  CHECK(!clock.known());
  read(clock, {.offset = -kSecond}, kSecond, 10, 10);
  CHECK(clock.offset() == -kSecond);
}
