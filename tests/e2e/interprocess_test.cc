// Device memory and events shared by client processes of one tenant, isolation from other tenants, and
// processes that are killed.
#include <signal.h>

#include "tests/e2e/shared_pool.h"

using namespace gpupool::testing;

namespace {

void passes_both_ways(const std::string& scenario, const Environment& softgpu = {}) {
  Pool pool(softgpu);
  const Finished direct = run_patiently({driver_app(), scenario}, pool.directly());
  INFO("directly: " << direct.output);
  CHECK(direct.status == 0);
  const Finished pooled = run_patiently({driver_app(), scenario}, pool.through());
  INFO("through poold: " << pooled.output);
  CHECK(pooled.status == 0);
}

void passes_through_poold(const std::string& scenario, const std::vector<std::string>& options = {}) {
  Pool pool(Environment{{"SOFTGPU_RULES", "-context_memory"}},
            options);  // quotas count whole granules
  const Finished pooled = run_patiently({driver_app(), scenario}, pool.through());
  INFO(pooled.output);
  CHECK(pooled.status == 0);
}

}  // namespace

TEST_CASE("interprocess memory") {
  passes_both_ways("interprocess_memory");
}
TEST_CASE("interprocess memory where the device gives garbage") {
  passes_both_ways("interprocess_memory", {{"SOFTGPU_DIRTY_MEMORY", "1"}});
}
TEST_CASE("interprocess events") {
  passes_both_ways("interprocess_events");
}
TEST_CASE("interprocess events of two devices") {
  passes_both_ways("interprocess_events_of_two_devices", {{"SOFTGPU_DEVICES", "2"}});
}
TEST_CASE("an event of a process that was killed") {
  passes_both_ways("interprocess_event_of_the_dead");
}
TEST_CASE("interprocess descriptors") {
  passes_both_ways("interprocess_descriptors");
}
TEST_CASE("interprocess pools and fabric handles") {
  passes_through_poold("interprocess_pools");
}

TEST_CASE("shared memory outlives its maker and stays charged once") {
  TemporaryFolder folder;
  const std::string config = folder.write("poold.toml", "[default_quota]\nmemory = \"16MiB\"\n");
  passes_through_poold("interprocess_survivor", {"--config", config});
}

TEST_CASE("shared memory outlives who has opened it") {
  TemporaryFolder folder;
  const std::string config = folder.write("poold.toml", "[default_quota]\nmemory = \"16MiB\"\n");
  passes_through_poold("interprocess_visitor", {"--config", config});
}

TEST_CASE("another tenant gets nothing and a forged handle opens nothing") {
  SharedPool pool({"", ""});
  TemporaryFolder folder;
  const std::string file = folder.path() / "handles";
  const auto owner = pool.start(1, {"interprocess_offer", file});
  REQUIRE(owner->await_output("offered", kLongPatience));
  const auto run = [&](size_t tenant, const std::string& works) {
    const auto taker = pool.start(tenant, {"interprocess_take", file, works});
    const int status = taker->wait(kLongPatience);
    taker->await_end_of_output();
    INFO(taker->output());
    CHECK(status == 0);
  };
  run(2, "no");
  run(1, "yes");
  owner->signal(SIGKILL);
  owner->wait();
  REQUIRE(pool->poold().await_log("session_ended", 3));
  run(1, "no");  // the exporting session has ended
}
