// A tenant's limits on bandwidth, streams, modules and queued bytes, as seen by its programs.
#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "tests/e2e/pool.h"
#include "tests/support/catch.h"

using namespace gpupool::testing;

namespace {

// A pool whose only tenant has this quota.
class LimitedPool {
 public:
  explicit LimitedPool(const std::string& quota, Environment environment = {})
      : pool_(std::move(environment),
              {"--config", folder_.write("poold.toml", "[default_quota]\n" + quota)}) {}
  Pool* operator->() { return &pool_; }

 private:
  TemporaryFolder folder_;
  Pool pool_;
};

double rate_in(const std::string& output, const std::string& way) {
  const size_t at = output.find(way);
  return at == std::string::npos ? -1 : std::strtod(output.c_str() + at + way.size(), nullptr);
}

}  // namespace

// Any machine can exceed these rates, so only the quota limits the copies.
TEST_CASE("bandwidth is limited in each direction") {
  LimitedPool pool("bandwidth_to_device = \"12MB/s\"\nbandwidth_to_host = \"8MB/s\"");
  // A busy machine may slow down any copy, so only the best of several runs must come near the quota; no run
  // may exceed it.
  double to_device = 0, from_device = 0;
  for (int runs = 0; runs < 6 && (to_device <= 0.75 * 12 || from_device <= 0.75 * 8); ++runs) {
    const Finished app = run_patiently({driver_app(), "bandwidth", "16777216", "random"}, pool->through());
    INFO(app.output);
    REQUIRE(app.status == 0);
    CHECK(rate_in(app.output, "to the device ") < 1.05 * 12);
    CHECK(rate_in(app.output, "from the device ") < 1.05 * 8);
    to_device = std::max(to_device, rate_in(app.output, "to the device "));
    from_device = std::max(from_device, rate_in(app.output, "from the device "));
  }
  CHECK(to_device > 0.75 * 12);
  CHECK(from_device > 0.75 * 8);
}

TEST_CASE("two programs of a tenant share its bandwidth") {
  LimitedPool pool("bandwidth_to_device = \"20MB/s\"");
  const auto start = std::chrono::steady_clock::now();
  Process one({driver_app(), "bandwidth", "8000000", "random"}, pool->through());
  Process two({driver_app(), "bandwidth", "8000000", "random"}, pool->through());
  CHECK(one.wait(kLongPatience) == 0);
  CHECK(two.wait(kLongPatience) == 0);
  INFO(one.output() << two.output());
  CHECK(std::chrono::steady_clock::now() - start >
        std::chrono::milliseconds(780));  // 16 MB less the initial burst
}

TEST_CASE("a client that is held back for long is not taken for dead") {
  LimitedPool pool("bandwidth_to_device = \"1MB/s\"");
  const Finished app = run_patiently({driver_app(), "bandwidth", "7000000", "random"},
                                     pool->through({{"GPUPOOL_DEAD_PEER_TIMEOUT_MS", "5000"}}));
  INFO(app.output);
  CHECK(app.status == 0);
}

TEST_CASE("more streams than a session may have are refused and those it has work") {
  LimitedPool pool("streams = 3");
  const Finished app = run_patiently({driver_app(), "many_streams", "8"}, pool->through());
  INFO(app.output);
  CHECK(app.status == 0);
  CHECK(app.output.find("3 of 8 streams work, then CUDA_ERROR_OUT_OF_MEMORY") != std::string::npos);
  CHECK(app.output.find("the tenant's quota 'streams' refused 1 (CUDA_ERROR_OUT_OF_MEMORY): 3 of 3 in use") !=
        std::string::npos);
}

TEST_CASE("more modules than a session may have are refused") {
  LimitedPool pool("modules = 2");
  const Finished app = run_patiently({driver_app(), "many_modules", "5"}, pool->through());
  INFO(app.output);
  CHECK(app.status == 0);
  CHECK(app.output.find("2 of 5 modules, then CUDA_ERROR_OUT_OF_MEMORY") != std::string::npos);
  CHECK(app.output.find("the tenant's quota 'modules' refused 1 (CUDA_ERROR_OUT_OF_MEMORY): 2 of 2 in use") !=
        std::string::npos);
}

TEST_CASE("a thread that queues too much behind a host function is held up and others go on") {
  for (const Environment& environment : {Environment{}, Environment{{"GPUPOOL_BULK_CONNECTIONS", "0"}}}) {
    LimitedPool pool("queued_bytes = \"1MiB\"");
    const Finished app =
        run_patiently({driver_app(), "much_behind_a_host_function"}, pool->through(environment));
    INFO(app.output);
    CHECK(app.status == 0);
  }
}

TEST_CASE("copies work with the fewest queued bytes there can be") {
  LimitedPool pool("queued_bytes = \"1MiB\"", {{"GPUPOOL_STAGING", "always"}});
  const Finished app = run_patiently({driver_app(), "bandwidth", "67108864", "random"}, pool->through());
  INFO(app.output);
  CHECK(app.status == 0);
}
