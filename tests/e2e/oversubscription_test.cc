// Oversubscribed device memory: the memory of idle programs moves to host memory and back, unnoticed by the
// programs.
#include <signal.h>

#include <fstream>

#include "tests/e2e/pool.h"
#include "tests/support/catch.h"

using namespace gpupool::testing;

namespace {

// A pool whose device has 128 MiB. Programs use no credentials, so they share one tenant's quota.
class CrampedPool {
 public:
  explicit CrampedPool(const std::string& quota, const std::string& host_memory_mib = "1024")
      : pool_(Environment{{"SOFTGPU_MEMORY", "128MiB"}}, options(quota, host_memory_mib)) {}
  Pool* operator->() { return &pool_; }
  std::string prefix(const std::string& name) { return folder_.path() / name; }
  void touch(const std::string& name) { std::ofstream(prefix(name)) << "."; }
  std::unique_ptr<Process> start(const std::string& name, const std::string& pieces,
                                 const std::string& rounds) {
    return std::make_unique<Process>(
        std::vector<std::string>{driver_app(), "oversubscribed", prefix(name), pieces, rounds},
        pool_.through());
  }

 private:
  std::vector<std::string> options(const std::string& quota, const std::string& host_memory_mib) {
    return {"--config", folder_.write("poold.toml", "[default_quota]\n" + quota + "\n"),
            "--host-memory-for-idle-mib", host_memory_mib};
  }
  TemporaryFolder folder_;
  Pool pool_;
};

}  // namespace

TEST_CASE("programs that have more than the device together alternate and keep what they wrote") {
  CrampedPool pool("memory = \"1GiB\"");
  const auto one = pool.start("one", "10", "4");
  REQUIRE(one->await_output("round 0\n"));
  const auto two = pool.start("two", "10", "4");
  REQUIRE(two->await_output("round 0\n"));
  CHECK(pool->poold().await_log("memory_moved_to_host"));
  for (int round = 0; round < 3; ++round) {
    const std::string done = "round " + std::to_string(round + 1) + "\n";
    pool.touch("one" + std::to_string(round));
    REQUIRE(one->await_output(done));
    pool.touch("two" + std::to_string(round));
    REQUIRE(two->await_output(done));
  }
  // Now both at the same time.
  pool.touch("one3");
  pool.touch("two3");
  CHECK(one->wait(kLongPatience) == 0);
  CHECK(two->wait(kLongPatience) == 0);
  INFO(one->output() << two->output());
}

TEST_CASE("guaranteed memory is not moved") {
  CrampedPool pool("memory = \"1GiB\"\nguaranteed_memory = \"1GiB\"");
  const auto one = pool.start("one", "10", "1");
  REQUIRE(one->await_output("round 0\n"));
  const Finished other = run_patiently({driver_app(), "takes_until_refused"}, pool->through());
  CHECK(other.output.find("took 5, then CUDA_ERROR_OUT_OF_MEMORY") != std::string::npos);
  INFO(other.output);
  CHECK(pool->poold().log().find("memory_moved_to_host") == std::string::npos);
  pool.touch("one0");
  CHECK(one->wait(kLongPatience) == 0);
}

TEST_CASE("without oversubscription nothing is moved") {
  CrampedPool pool("memory = \"1GiB\"", "0");
  const auto one = pool.start("one", "10", "1");
  REQUIRE(one->await_output("round 0\n"));
  const Finished other = run_patiently({driver_app(), "takes_until_refused"}, pool->through());
  INFO(other.output);
  CHECK(other.output.find("took 5, then CUDA_ERROR_OUT_OF_MEMORY") != std::string::npos);
  pool.touch("one0");
  CHECK(one->wait(kLongPatience) == 0);
}

TEST_CASE("programs that never pause and have more than the device together take turns") {
  CrampedPool pool("memory = \"1GiB\"");
  constexpr int kRounds = gpupool::kSanitized ? 8 : 30;
  const auto one = pool.start("one", "10", std::to_string(kRounds));
  REQUIRE(one->await_output("round 0\n"));
  const auto two = pool.start("two", "10", std::to_string(kRounds));
  REQUIRE(two->await_output("round 0\n"));
  for (int round = 0; round < kRounds; ++round) {
    for (const char* const name : {"one", "two"}) pool.touch(name + std::to_string(round));
  }
  const int status = one->wait(kLongPatience);
  INFO(one->output() << two->output() << pool->poold().log());
  CHECK(status == 0);
  CHECK(two->wait(kLongPatience) == 0);
  CHECK(pool->poold().await_log("memory_moved_to_host", 3));
}

TEST_CASE("memory moved to the host is bounded") {
  CrampedPool pool("memory = \"1GiB\"", "16");
  const auto one = pool.start("one", "10", "1");
  REQUIRE(one->await_output("round 0\n"));
  const Finished other = run_patiently({driver_app(), "takes_until_refused"}, pool->through());
  INFO(other.output);
  CHECK(other.output.find("took 7, then CUDA_ERROR_OUT_OF_MEMORY") != std::string::npos);
  pool.touch("one0");
  CHECK(one->wait(kLongPatience) == 0);
}

TEST_CASE("a program that is killed while its memory is in host memory or comes back leaves nothing") {
  CrampedPool pool("memory = \"1GiB\"");
  const auto one = pool.start("one", "10", "9");
  REQUIRE(one->await_output("round 0\n"));
  const auto two = pool.start("two", "10", "9");
  REQUIRE(two->await_output("round 0\n"));
  REQUIRE(pool->poold().await_log("memory_moved_to_host"));
  SECTION("in host memory") {}
  SECTION("on its way back") {
    for (int round = 0; round < 9; ++round) pool.touch("two" + std::to_string(round));
    REQUIRE(two->await_output("round 1\n"));
    pool.touch("one0");
  }
  one->signal(SIGKILL);
  one->wait();
  REQUIRE(pool->poold().await_log("session_ended"));
  for (int round = 0; round < 9; ++round) pool.touch("two" + std::to_string(round));
  CHECK(two->wait(kLongPatience) == 0);
  INFO(two->output());
  // The whole device is available again.
  const auto last = pool.start("one", "14", "0");
  CHECK(last->wait(kLongPatience) == 0);
}

TEST_CASE("a worker that is killed while memory is moved harms no other session") {
  CrampedPool pool("memory = \"1GiB\"");
  for (int attempt = 0; attempt < 4; ++attempt) {
    const auto one = pool.start("one", "12", "1");
    REQUIRE(one->await_output("round 0\n"));
    const pid_t worker = pool->worker_of(*one);
    const auto two = pool.start("two" + std::to_string(attempt), "12", "1");
    REQUIRE(pool->poold().await_log("memory_moved_to_host", static_cast<size_t>(attempt + 1)));
    ::usleep(static_cast<useconds_t>(attempt) * 4000);
    ::kill(worker, SIGKILL);
    REQUIRE(two->await_output("round 0\n"));
    pool.touch("two" + std::to_string(attempt) + "0");
    CHECK(two->wait(kLongPatience) == 0);
    INFO(two->output());
    one->signal(SIGKILL);
    one->wait();
  }
}
