// Tests of the rate of events, with times of the test.
#include "client/kubernetes/event_rate.h"

#include "tests/support/catch.h"

using namespace gpupool::kubernetes;
using Answer = EventRate::Answer;
using std::chrono::minutes;
using std::chrono::seconds;

TEST_CASE("a text that differs only in numbers is written again after minutes") {
  EventRate rate;
  const EventRate::Clock::time_point start{};
  CHECK(rate.ask("u", "Waiting", "position 9 of 10", start) == Answer::write);
  for (int second = 1; second < 600; ++second)
    CHECK(rate.ask("u", "Waiting", "position " + std::to_string(second) + " of 1000",
                   start + seconds(second)) == Answer::known);
  CHECK(rate.count("u", "Waiting") == 1);
  CHECK(rate.ask("u", "Waiting", "position 1 of 1", start + minutes(10)) == Answer::write);
  CHECK(rate.count("u", "Waiting") == 2);
}

TEST_CASE("another text is written after half a minute") {
  EventRate rate;
  const EventRate::Clock::time_point start{};
  CHECK(rate.ask("u", "Refused", "wrong token", start) == Answer::write);
  CHECK(rate.ask("u", "Refused", "no token", start + seconds(29)) == Answer::later);
  CHECK(rate.ask("u", "Refused", "no token", start + seconds(30)) == Answer::write);
}

TEST_CASE("other reasons and other claims do not wait, and a reason that comes back is written again") {
  EventRate rate;
  const EventRate::Clock::time_point start{};
  CHECK(rate.ask("u", "Waiting", "text", start) == Answer::write);
  CHECK(rate.ask("v", "Waiting", "text", start) == Answer::write);
  CHECK(rate.ask("u", "Granted", "text", start + seconds(1)) == Answer::write);
  CHECK(rate.ask("u", "LeaseLost", "text", start + seconds(2)) == Answer::write);
  CHECK(rate.ask("u", "Granted", "text", start + seconds(3)) == Answer::later);
  CHECK(rate.ask("u", "Granted", "text", start + seconds(31)) == Answer::write);
}

TEST_CASE("a text that was not written is not known") {
  EventRate rate;
  const EventRate::Clock::time_point start{};
  CHECK(rate.ask("u", "Refused", "text", start) == Answer::write);
  rate.forget_text("u", "Refused");
  CHECK(rate.ask("u", "Refused", "text", start + seconds(1)) == Answer::later);
  CHECK(rate.ask("u", "Refused", "text", start + seconds(30)) == Answer::write);
}

TEST_CASE("the number of claims that are remembered is limited") {
  EventRate rate;
  const EventRate::Clock::time_point start{};
  for (size_t claim = 0; claim <= EventRate::kMostClaims; ++claim)
    CHECK(rate.ask("u-" + std::to_string(claim), "Refused", "text", start + seconds(claim)) == Answer::write);
  CHECK(rate.count("u-0", "Refused") == 0);  // the oldest
  CHECK(rate.count("u-1", "Refused") == 1);
}
