#include "common/admission/peer_rates.h"

#include <algorithm>

#include "tests/support/catch.h"

using gpupool::PeerRates;
using std::chrono::seconds;

TEST_CASE("a peer may use its burst at once and then its rate independently of other peers") {
  PeerRates rates({.burst = 10, .per_second = 1});
  const auto start = PeerRates::Clock::now();
  for (int i = 0; i < 10; ++i) CHECK(rates.take("10.0.0.1", start));
  CHECK_FALSE(rates.take("10.0.0.1", start));
  CHECK(rates.take("10.0.0.2", start));
  CHECK(rates.take("user 1000", start));
  CHECK(rates.take("10.0.0.1", start + seconds(1)));
  CHECK_FALSE(rates.take("10.0.0.1", start + seconds(1)));
  for (int i = 0; i < 10; ++i) CHECK(rates.take("10.0.0.1", start + seconds(60)));
  CHECK_FALSE(rates.take("10.0.0.1", start + seconds(60)));
}

TEST_CASE("the number of remembered peers is bounded") {
  PeerRates rates({.burst = 10, .per_second = 1});
  const auto now = PeerRates::Clock::now();
  size_t most = 0;
  for (size_t i = 0; i < 5 * PeerRates::kMostPeers; ++i) {
    CHECK(rates.take("10.0." + std::to_string(i), now));
    most = std::max(most, rates.peers());
  }
  CHECK(most == PeerRates::kMostPeers);
}

TEST_CASE("an active peer is remembered while others come and are forgotten") {
  PeerRates rates({.burst = 10, .per_second = 1});
  const auto now = PeerRates::Clock::now();
  while (rates.take("192.0.2.1", now)) {
  }
  for (size_t i = 0; i < 3 * PeerRates::kMostPeers; ++i) {
    rates.take("10.0." + std::to_string(i), now);
    if (i % 1000 == 0) CHECK_FALSE(rates.take("192.0.2.1", now));
  }
}
