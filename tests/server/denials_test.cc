#include "server/denials.h"

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

TEST_CASE("many addresses take bounded memory and time") {
  Denials denials;
  const auto now = Denials::Clock::now();
  for (int i = 0; i < 20'000; ++i) denials.note("10.0." + std::to_string(i) + ":1", now);
  SUCCEED();
}
