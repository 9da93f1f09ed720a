// Sessions that wait for their client, as operators and other tenants see them.
#include <signal.h>

#include <chrono>
#include <fstream>
#include <sstream>

#include "tests/e2e/json.h"
#include "tests/e2e/pool.h"
#include "tests/support/catch.h"
#include "tests/support/cutting_proxy.h"
#include "tests/support/http_get.h"
#include "tests/support/raw_client.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

std::string pool_admin(Pool& pool, std::vector<std::string> words) {
  words.insert(words.begin(), {program_path("pool-admin"), "--poold", "unix:" + pool.poold().admin_socket()});
  const Finished finished = run_to_end(words);
  INFO(finished.output);
  REQUIRE(finished.status == 0);
  return finished.output;
}

Json session(Pool& pool, size_t index) {
  return parse_json(pool_admin(pool, {"--json", "sessions"})).at(index);
}

// A program whose connections are cut while it is stopped, until it is continued.
class AwayProgram {
 public:
  AwayProgram(Pool& pool, const std::vector<std::string>& words)
      : proxy_(pool.poold().endpoint(), 1, 1),
        app_(words,
             pool.through({{"GPUPOOL", proxy_.endpoint().text()}, {"GPUPOOL_BULK_CONNECTIONS", "0"}})) {
    proxy_.stop_cutting();
    REQUIRE(app_.await_output("working"));
    ::kill(app_.pid(), SIGSTOP);
    proxy_.cut();
    REQUIRE(pool.poold().await_log("client_connection_broken"));
  }
  void come_back() { ::kill(app_.pid(), SIGCONT); }
  ~AwayProgram() { ::kill(app_.pid(), SIGKILL); }
  AwayProgram(const AwayProgram&) = delete;
  AwayProgram& operator=(const AwayProgram&) = delete;

 private:
  CuttingProxy proxy_;
  Process app_;
};

uint32_t offered_ms(Pool& pool) {
  RawClient client(pool.poold().endpoint());
  hello::Hello hello = test_hello();
  hello.can_resume = true;
  return client.open(hello).resume_timeout_ms;
}

}  // namespace

TEST_CASE("operators see sessions that wait for their client and that were resumed") {
  const TemporaryFolder folder;
  const std::string audit = folder.path() / "audit";
  Pool pool({}, {"--resume-timeout", "60", "--metrics", "127.0.0.1:0", "--audit-file", audit});
  const uint16_t port = metrics_port(pool.poold().log());
  AwayProgram program(pool, {driver_app(), "counting", "1000000", "4000"});
  CHECK(eventually([&] { return session(pool, 0)["state"] == "waiting for client"; }));
  CHECK(session(pool, 0)["waiting_ms"] > 0);
  CHECK(session(pool, 0)["resumed"] == 0);
  CHECK(pool_admin(pool, {"sessions"}).find("waiting for client") != std::string::npos);
  CHECK(http_get(port, "/metrics")
            .find("gpupool_session_waits_for_client{session=\"1\",tenant=\"default\"} 1") !=
        std::string::npos);
  program.come_back();
  REQUIRE(pool.poold().await_log("session_resumed"));
  CHECK(eventually([&] { return session(pool, 0)["state"] == "running"; }));
  const Json resumed = session(pool, 0);
  CHECK(resumed["waiting_ms"] == 0);
  CHECK(resumed["resumed"] == 1);
  CHECK(resumed["waited_ms"] > 0);
  const std::string metrics = http_get(port, "/metrics");
  CHECK(metrics.find("gpupool_session_waits_for_client{session=\"1\",tenant=\"default\"} 0") !=
        std::string::npos);
  CHECK(metrics.find("gpupool_session_resumed_total{session=\"1\",tenant=\"default\"} 1") !=
        std::string::npos);
  std::stringstream records;
  records << std::ifstream(audit).rdbuf();
  CHECK(lines_with(records.str(), "session_waits_for_client").size() == 1);
  CHECK(lines_with(records.str(), "\"session_resumed\"").size() == 1);
}

TEST_CASE("a tenant may have its own time to resume") {
  const TemporaryFolder folder;
  Pool pool({}, {"--resume-timeout", "60", "--config",
                 folder.write("poold.toml", "[default_quota]\nresume_timeout = 'off'\n")});
  CHECK(offered_ms(pool) == 0);
  pool_admin(pool, {"quota", "set", "default", "resume-timeout=7"});
  CHECK(offered_ms(pool) == 7'000);
  pool_admin(pool, {"quota", "set", "default", "resume-timeout=default"});
  CHECK(offered_ms(pool) == 60'000);
}

TEST_CASE("a session that waits for its client lends its share of the GPU") {
  Pool pool({}, {"--resume-timeout", "60"});
  const AwayProgram away(pool, {driver_app(), "keep_busy", "600000", "20000"});
  const auto used = [&](size_t index) {
    const Json gpus = session(pool, index)["gpus"];
    return gpus.empty() ? uint64_t{0} : gpus[0]["gpu_nanoseconds"].get<uint64_t>();
  };
  // The worker executes all that the program had queued: 8 launches, which may take long on a busy machine.
  constexpr uint64_t kQueued = 100'000'000;
  uint64_t before = 0;
  CHECK(eventually([&] { return std::exchange(before, used(0)) == before && before != 0; }));
  Process other({driver_app(), "keep_busy", "600000", "20000"}, pool.through());
  REQUIRE(other.await_output("working"));
  INFO(pool.poold().log());
  CHECK(eventually([&] { return used(1) > 1'000'000'000; }));
  const Json gpu = session(pool, 1)["gpus"][0];
  CHECK(gpu["throttled_nanoseconds"].get<double>() < 0.1 * gpu["gpu_nanoseconds"].get<double>());
  CHECK(used(0) <= before + kQueued);
}
