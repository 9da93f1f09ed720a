#include "common/admission/suppressed_events.h"

#include <vector>

#include "tests/support/catch.h"

using gpupool::SuppressedEvents;

TEST_CASE(
    "the count of suppressed events is reported one second after the first one even if no other follows") {
  asio::io_context context;
  std::vector<uint64_t> reported;
  SuppressedEvents suppressed(context, [&](uint64_t count) { reported.push_back(count); });
  for (int i = 0; i < 1000; ++i) suppressed.note();
  CHECK(reported.empty());
  context.run();  // returns when the timer has expired
  CHECK(reported == std::vector<uint64_t>{1000});
  suppressed.note();
  suppressed.finish();
  suppressed.finish();
  context.restart();
  context.run();
  CHECK(reported == std::vector<uint64_t>{1000, 1});
}
