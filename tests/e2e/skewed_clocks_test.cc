// Hosts with wrong clocks: a pool works while the clocks differ by less than half a minute, and reports the
// difference.
#include "tests/e2e/whole_pool.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

Environment ahead(int seconds) {
  return {{"LD_PRELOAD", SKEWED_CLOCK}, {"SKEW_SECONDS", std::to_string(seconds)}};
}

}  // namespace

TEST_CASE("clocks that are 25 s apart are tolerated and reported") {
  WholePool pool(ahead(25), ahead(-25));
  const Finished app = run_patiently(pool.command({"--gpus", "4"}, {driver_app(), "list_devices"}), {});
  INFO(app.output);
  CHECK(app.status == 0);
  CHECK(lines_with(app.output, "GPU-").size() == 4);
  CHECK(pool.is_idle());
  std::string nodes;  // a report delayed by a busy machine shows a smaller skew until the next one
  CHECK(eventually([&] {
    nodes = pool.pool_admin({"nodes"});
    return (has(nodes, "+25.") || has(nodes, "+24.")) && (has(nodes, "-25.") || has(nodes, "-24."));
  }));
  INFO(nodes);
  CHECK(has(pool.scheduler().log(), "clock_skew node=one"));
  CHECK(has(pool.scheduler().log(), "clock_skew node=two"));
  CHECK(pool.first().poold().await_log("clocks_differ"));
  CHECK(pool.second().poold().await_log("clocks_differ"));
}

TEST_CASE("clocks that are 1 s apart are nothing to talk about") {
  WholePool pool(ahead(1), ahead(-1));
  CHECK(run_patiently(pool.command({"--gpus", "4"}, {driver_app(), "list_devices"}), {}).status == 0);
  CHECK(!has(pool.scheduler().log(), "clock_skew"));
  CHECK(!has(pool.first().poold().log() + pool.second().poold().log(), "clocks_differ"));
}

TEST_CASE("a token from a minute ahead is refused with the reason") {
  WholePool pool(ahead(-60), ahead(-60));
  const Finished app = run_patiently(pool.command({"--gpus", "1"}, {driver_app(), "list_devices"}), {});
  INFO(app.output);
  CHECK(app.status != 0);
  CHECK(has(app.output, "in the future"));
  CHECK(pool.is_idle());
}
