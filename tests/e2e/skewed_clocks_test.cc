// Hosts with wrong clocks: a pool works while the clocks differ by less than half a minute, and reports the
// difference.
#include <cstdint>
#include <cstdlib>
#include <fstream>

#include "tests/e2e/expect_success.h"
#include "tests/e2e/pool_admin.h"
#include "tests/e2e/whole_pool.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

Environment ahead(int seconds) {
  return {{"LD_PRELOAD", SKEWED_CLOCK}, {"SKEW_SECONDS", std::to_string(seconds)}};
}

// Clocks that all follow a file.
class JumpingClock {
 public:
  JumpingClock() : name_(folder_.write("skew", std::string(sizeof(int64_t), '\0'))) {}
  void jump_to(int64_t seconds) const {
    std::fstream file(name_, std::ios::binary | std::ios::in | std::ios::out);  // in place: it is mapped
    file.write(reinterpret_cast<const char*>(&seconds), sizeof seconds);
  }
  Environment environment() const { return {{"LD_PRELOAD", SKEWED_CLOCK}, {"SKEW_FILE", name_}}; }

 private:
  const TemporaryFolder folder_;
  const std::string name_;
};

// How many seconds poold's clock is ahead of the scheduler's, as poold has last heard.
int64_t seconds_ahead(Pool& host) {
  const std::string health = run_to_end(admin_words(host.poold(), {"--json", "health"})).output;
  const std::string key = "\"clock_skew_ms\":";
  const size_t at = health.find(key);
  return at == std::string::npos ? 0 : -std::stoll(health.substr(at + key.size())) / 1000;
}

}  // namespace

TEST_CASE("a clock that jumps ends no program") {
  const JumpingClock clock;
  WholePool pool(clock.environment());  // only the first node's
  const TemporaryFolder folder;
  const std::string end = folder.path() / "end";
  std::vector<std::unique_ptr<Process>> apps;
  for (int i = 0; i < 2; ++i) {
    apps.push_back(std::make_unique<Process>(
        pool.command({"--gpus", "2", "--one-host"}, {driver_app(), "changing", end, "4"}), Environment{}));
    REQUIRE(apps.back()->await_output("working", kLongPatience));
  }
  for (const int64_t seconds : {3'600, -3'600, 86'400}) {
    clock.jump_to(seconds);
    CHECK(eventually([&] { return std::abs(seconds_ahead(pool.first()) - seconds) < 20; }));
  }
  clock.jump_to(0);
  folder.write("end", "");
  for (const auto& app : apps) expect_success(*app, "nothing is lost");
  CHECK(pool.is_idle());
  CHECK(run_patiently(pool.command({"--gpus", "4"}, {driver_app(), "list_devices"}), {}).status == 0);
}

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
