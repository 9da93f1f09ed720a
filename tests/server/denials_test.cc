#include "server/denials.h"

#include <algorithm>

#include "tests/support/catch.h"

using gpupool::server::Denials;
using std::chrono::seconds;

TEST_CASE("an address gets some answers at once, then one a second; others are not concerned") {
  Denials denials;
  const auto start = Denials::Clock::now();
  for (int port = 0; port < 10; ++port) CHECK(denials.note("10.0.0.1:" + std::to_string(port), start));
  CHECK_FALSE(denials.note("10.0.0.1:99", start));
  CHECK(denials.note("10.0.0.2:1", start));
  CHECK(denials.note("[::1]:1", start));
  CHECK(denials.note("10.0.0.1:99", start + seconds(1)));
  CHECK_FALSE(denials.note("10.0.0.1:99", start + seconds(1)));
  for (int i = 0; i < 10; ++i) CHECK(denials.note("10.0.0.1:99", start + seconds(60)));
  CHECK_FALSE(denials.note("10.0.0.1:99", start + seconds(60)));
}

TEST_CASE("keeps a bounded number of addresses however many fail") {
  Denials denials;
  const auto now = Denials::Clock::now();
  size_t most = 0;
  for (size_t i = 0; i < 5 * Denials::kMostAddresses; ++i) {
    CHECK(denials.note("10.0." + std::to_string(i) + ":1", now));
    most = std::max(most, denials.addresses());
  }
  CHECK(most == Denials::kMostAddresses);
}

TEST_CASE("forgets addresses that may be answered in full again before those that may not") {
  Denials denials;
  const auto start = Denials::Clock::now();
  for (size_t i = 2; i < Denials::kMostAddresses; ++i) denials.note("10.0." + std::to_string(i) + ":1", start);
  const auto later = start + seconds(20);
  while (denials.note("192.0.2.1:1", later)) {}
  CHECK(denials.note("192.0.2.2:1", later));
  CHECK(denials.addresses() == Denials::kMostAddresses);
  CHECK(denials.note("192.0.2.3:1", later));  // one more than there is room for
  CHECK(denials.addresses() == 3);
  CHECK_FALSE(denials.note("192.0.2.1:1", later));
}
