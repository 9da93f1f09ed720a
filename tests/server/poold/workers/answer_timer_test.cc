#include "server/poold/workers/answer_timer.h"

#include "tests/support/catch.h"

using gpupool::server::AnswerTimer;
using std::chrono::milliseconds;

TEST_CASE("a queued timeout does not fire after the timer is stopped or restarted") {
  const bool again = GENERATE(true, false);
  asio::io_context context;
  AnswerTimer timer(context);
  asio::steady_timer answer(context);
  int old = 0, later = 0;
  // Both timers have expired before the context runs, so it queues both handlers at once, in this order.
  answer.expires_after(milliseconds(-2));
  answer.async_wait([&](const asio::error_code&) {
    timer.stop();
    if (again) timer.start(milliseconds(0), [&] { ++later; });
  });
  timer.start(milliseconds(-1), [&] { ++old; });
  context.run();
  CHECK(old == 0);
  CHECK(later == (again ? 1 : 0));
}
