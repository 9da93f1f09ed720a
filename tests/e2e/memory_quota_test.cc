// A tenant's memory quota, as seen by its programs; and no program sees data that another program left in
// memory.
#include <signal.h>

#include <cstdio>
#include <fstream>

#include "tests/e2e/shared_pool.h"

using namespace gpupool::testing;

namespace {

// A pool whose only tenant may use this number of granules (2 MiB each) of a device of 1 GiB.
class LimitedPool {
 public:
  explicit LimitedPool(unsigned granules, Environment environment = {})
      : pool_(
            [&] {
              environment.emplace("SOFTGPU_MEMORY", "1GiB");
              environment.emplace("SOFTGPU_RULES", "-context_memory");  // contexts take no memory, so the
                                                                        // quota is in whole granules
              return environment;
            }(),
            options(granules)) {}
  Pool* operator->() { return &pool_; }
  std::vector<std::string> options(unsigned granules) {
    std::vector<std::string> all = kTellsOfWorkers;
    all.insert(all.end(), {"--config", configure(granules)});
    return all;
  }
  std::string configure(unsigned granules) {
    return folder_.write("poold.toml",
                         "[default_quota]\nmemory = \"" + std::to_string(2 * granules) + "MiB\"\n");
  }
  std::string file(const std::string& name) { return folder_.path() / name; }
  void touch(const std::string& name) { std::ofstream(file(name)) << "."; }

 private:
  TemporaryFolder folder_;
  Pool pool_;
};

std::string passes(LimitedPool& pool, const std::vector<std::string>& scenario,
                   Environment environment = {}) {
  std::vector<std::string> words{driver_app()};
  words.insert(words.end(), scenario.begin(), scenario.end());
  const Finished app = run_patiently(words, pool->through(std::move(environment)));
  INFO(app.output);
  CHECK(app.status == 0);
  return app.output;
}

}  // namespace

TEST_CASE("every way to get memory stops at the quota and the client names it once") {
  LimitedPool pool(32);
  const std::string output = passes(pool, {"quota_every_way", "32"});
  INFO(output);
  const std::string refusal = "the tenant's quota 'memory' refused ";
  const size_t at = output.find(refusal);
  REQUIRE(at != std::string::npos);
  CHECK(output.find(refusal, at + 1) == std::string::npos);
  CHECK(output.find(" of 64.0 MiB in use", at) != std::string::npos);
  passes(pool, {"quota_every_way", "32"});  // the first run has released all charges
}

TEST_CASE("small allocations fill the last granule of the quota") {
  LimitedPool pool(16);
  passes(pool, {"quota_small_allocations", "16"});
}

TEST_CASE("free memory of a pool counts in the quota and is given back before an allocation fails") {
  LimitedPool pool(64);
  passes(pool, {"pooled_memory_is_given_back", "128"});
}

TEST_CASE("modules and limits of contexts are in the quota") {
  LimitedPool pool(8);
  passes(pool, {"quota_of_modules_and_limits", "8"});
}

TEST_CASE("contexts are in the quota and the first one too") {
  LimitedPool pool(64, {{"SOFTGPU_RULES", ""}, {"SOFTGPU_CONTEXT_MEMORY", "16MiB"}});
  passes(pool, {"quota_counts_contexts", "128", "16"});
}

TEST_CASE("a quota without room for a context is told by the call that makes it") {
  LimitedPool pool(4, {{"SOFTGPU_RULES", ""}, {"SOFTGPU_CONTEXT_MEMORY", "16MiB"}});
  const Finished app = run_patiently({driver_app(), "quota_without_room_for_a_context"}, pool->through());
  INFO(app.output);
  CHECK(app.status == 0);
  CHECK(app.output.find("gpupool: device 0: cannot create a context") != std::string::npos);
  CHECK(app.output.find("memory quota (8 MiB)") != std::string::npos);
  CHECK(pool->poold().await_log("context_exceeds_quota", 2));
}

// The device's free memory, measured by another tenant, is compared with the tenant's account.
TEST_CASE("memory that the device takes by itself for kernels and limits never exceeds the charge") {
  constexpr uint64_t kQuota = 96;
  TemporaryFolder folder;
  SharedPool pool(
      {"memory = \"" + std::to_string(kQuota) + "MiB\"", "compute = 100"},
      {{"SOFTGPU_MEMORY", "1GiB"}, {"SOFTGPU_CONTEXT_MEMORY", "16MiB"}, {"SOFTGPU_THREADS", "2"}});
  const auto free_of_device = [&] {
    const auto observer = pool.start(2, {"show_free_memory"});
    CHECK(observer->wait(kLongPatience) == 0);
    observer->await_end_of_output();
    size_t free = 0;
    REQUIRE(std::sscanf(observer->output().c_str(), "free %zu", &free) == 1);
    return free;
  };
  const size_t before = free_of_device();
  const std::string file = folder.path() / "go";
  const auto app = pool.start(1, {"quota_of_local_memory", std::to_string(kQuota), file});
  for (int step = 1; step <= 6; ++step) {
    const std::string line = "step " + std::to_string(step) + ": ";
    const bool came = app->await_output(line, kLongPatience) && app->await_output("\n", kLongPatience);
    INFO(app->output());
    REQUIRE(came);
    const size_t charged =
        std::strtoull(app->output().c_str() + app->output().find(line) + line.size(), nullptr, 10);
    const size_t taken = before - free_of_device();
    INFO(line << charged << " bytes are charged and " << taken << " taken");
    CHECK(taken >= size_t{16} << 20);
    CHECK(taken <= charged);
    CHECK(charged <= kQuota << 20);
    std::ofstream(file + std::to_string(step)) << ".";
  }
  CHECK(app->wait(kLongPatience) == 0);
  app->await_end_of_output();
  INFO(app->output());
  CHECK(app->output().find("driver_app:") == std::string::npos);
}

TEST_CASE("32 programs that race for a quota get all of it and nothing over") {
  constexpr unsigned kGranules = 301;
  LimitedPool pool(kGranules);
  std::vector<std::unique_ptr<Process>> racers;
  for (int i = 0; i < 32; ++i) {
    const std::string way =
        std::to_string(i % 3 == 0 ? 4 : i % 3);  // cuMemCreate, cuMemAllocPitch, cuMemAllocAsync
    racers.push_back(std::make_unique<Process>(
        std::vector<std::string>{driver_app(), "quota_race", pool.file("start"), way}, pool->through()));
  }
  for (auto& racer : racers) REQUIRE(racer->await_output("ready\n", kLongPatience));
  pool.touch("start");
  unsigned taken = 0;
  for (auto& racer : racers) {
    REQUIRE(racer->await_output(".\n", kLongPatience));
    unsigned own = 0;
    const auto took = lines_with(racer->output(), "took ");  // the client prints which quota refused the rest
    REQUIRE(took.size() == 1);
    REQUIRE(std::sscanf(took[0].c_str(), "took %u.", &own) == 1);
    taken += own;
  }
  CHECK(taken == kGranules);
  for (auto& racer : racers) racer->signal(SIGKILL);
  racers.clear();
  REQUIRE(pool->poold().await_rest(32));
  passes(pool, {"quota_every_way", std::to_string(kGranules)});  // all of the memory is available again
}

TEST_CASE("a quota that changes is seen by who runs") {
  LimitedPool pool(10);
  Process app({driver_app(), "quota_follows", pool.file("go")}, pool->through());
  const auto after = [&](unsigned granules, int round, const std::string& line) {
    pool.configure(granules);
    pool->poold().process().signal(SIGHUP);
    REQUIRE(pool->poold().await_log("reloaded", static_cast<size_t>(round - 1)));
    pool.touch("go" + std::to_string(round - 1));
    INFO(app.output());
    CHECK(app.await_output("round " + std::to_string(round) + ": " + line));
  };
  CHECK(app.await_output("round 1: 6 of 10 granules, CUDA_SUCCESS\n"));
  after(7, 2, "3 of 7 granules, CUDA_ERROR_OUT_OF_MEMORY\n");
  after(2, 3, "0 of 2 granules, CUDA_ERROR_OUT_OF_MEMORY\n");
  after(100, 4, "96 of 100 granules, CUDA_SUCCESS\n");
  pool.touch("go4");
  CHECK(app.wait(kLongPatience) == 0);
}

TEST_CASE("memory is zero when a program gets it even where the device does not see to it") {
  Pool clean;
  CHECK(run_patiently({driver_app(), "memory_is_zero"}, clean.through()).status == 0);
  Pool dirty(Environment{{"SOFTGPU_DIRTY_MEMORY", "1"}});
  CHECK(run_patiently({driver_app(), "memory_is_zero"}, dirty.directly()).status != 0);
  const Finished app = run_patiently({driver_app(), "memory_is_zero"}, dirty.through());
  INFO(app.output);
  CHECK(app.status == 0);
}
