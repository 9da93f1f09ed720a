// Sessions whose client's program was killed: what they hold is free as soon as somebody wants it, while a
// client that still lives keeps its session.
#include <signal.h>

#include <chrono>

#include "protocol/wire/commands.h"
#include "tests/e2e/json.h"
#include "tests/e2e/pool.h"
#include "tests/support/catch.h"
#include "tests/support/cutting_proxy.h"
#include "tests/support/raw_client.h"
#include "tests/support/skip.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

const std::vector<std::string> kCounts{driver_app(), "counting", "1000000", "4000"};
const std::vector<std::string> kCountsBriefly{driver_app(), "counting", "2", "4000"};
// Takes all memory at once, because its file exists, and keeps it.
const std::vector<std::string> kTakesAll{driver_app(), "quota_race", "/dev/null", "0"};

// Less than the time that a worker keeps an abandoned session which nobody wants.
constexpr std::chrono::milliseconds kAtOnce{3'500};

// Returns when the worker has noticed.
void kill_when_it_says(Pool& pool, const std::vector<std::string>& words, const std::string& line) {
  const size_t before = occurrences(pool.poold().log(), "client_connection_broken");
  Process program(words, pool.through());
  REQUIRE(program.await_output(line));
  ::kill(program.pid(), SIGKILL);
  REQUIRE(pool.poold().await_log("client_connection_broken", before + 1));
}

// Returns when all sessions have ended.
std::string run(Pool& pool, const std::vector<std::string>& words) {
  const Finished app = run_patiently(words, pool.through());
  INFO(app.output);
  CHECK(app.status == 0);
  CHECK(pool.poold().await_log("session_ended", occurrences(pool.poold().log(), "session_running")));
  return app.output;
}

void check_ended_early(Pool& pool, size_t sessions) {
  REQUIRE(pool.poold().await_log("session_ended", sessions));
  for (const std::string& line : lines_with(pool.poold().log(), "session_ends")) {
    INFO(line);
    CHECK((line.find("its client's process has ended") != std::string::npos ||
           line.find("its client had closed the connection, and ") != std::string::npos));
  }
}

}  // namespace

TEST_CASE("the only session slot of a killed program is free at once") {
  Pool pool({}, {"--max-sessions", "1"});
  constexpr size_t kTimes = 4;
  for (size_t times = 0; times < kTimes; ++times) {
    kill_when_it_says(pool, kCounts, "working");
    const auto start = std::chrono::steady_clock::now();
    run(pool, kCountsBriefly);
    CHECK(std::chrono::steady_clock::now() - start < kAtOnce);
  }
  check_ended_early(pool, 2 * kTimes);
  CHECK(lines_with(pool.poold().log(), "session_ends").size() == kTimes);
}

TEST_CASE("a killed program does not count in the tenant's limit of sessions") {
  const TemporaryFolder folder;
  Pool pool({}, {"--config", folder.write("poold.toml", "[default_quota]\nsessions = 1\n")});
  for (int times = 0; times < 3; ++times) {
    kill_when_it_says(pool, kCounts, "working");
    const auto start = std::chrono::steady_clock::now();
    run(pool, kCountsBriefly);
    CHECK(std::chrono::steady_clock::now() - start < kAtOnce);
  }
}

TEST_CASE("the memory of a killed program is free when another program wants it") {
  const TemporaryFolder folder;
  const bool by_quota = GENERATE(false, true);
  Pool pool({{"SOFTGPU_MEMORY", "256MiB"}},
            {"--config", folder.write("poold.toml", by_quota ? "[default_quota]\nmemory = '200MiB'\n" : "")});
  const std::string free = run(pool, {driver_app(), "show_free_memory"});
  const std::string taken = run(pool, {driver_app(), "takes_until_refused"});
  INFO(taken);
  CHECK(taken.find("took 0,") == std::string::npos);
  const auto start = std::chrono::steady_clock::now();
  kill_when_it_says(pool, kTakesAll, "took");
  CHECK(run(pool, {driver_app(), "takes_until_refused"}) == taken);
  kill_when_it_says(pool, kTakesAll, "took");
  CHECK(run(pool, {driver_app(), "show_free_memory"}) == free);
  CHECK(std::chrono::steady_clock::now() - start < 2 * kAtOnce);
  check_ended_early(pool, 6);
}

TEST_CASE("the session of a killed program on this host ends without anybody wanting it") {
  if (!over_shared_memory()) return report_skip("over tcp poold does not know the client's process");
  Pool pool;
  const auto start = std::chrono::steady_clock::now();
  kill_when_it_says(pool, kCounts, "working");
  REQUIRE(pool.poold().await_log("session_ended"));
  CHECK(std::chrono::steady_clock::now() - start < kAtOnce);
  CHECK(lines_with(pool.poold().log(), "its client's process has ended").size() != 0);
}

TEST_CASE("a program behind a proxy that restarts goes on") {
  Pool pool;
  CuttingProxy proxy(pool.poold().endpoint(), 1, 1);
  proxy.stop_cutting();
  Process app(kCounts, pool.through({{"GPUPOOL", proxy.endpoint().text()}}));
  REQUIRE(app.await_output("working"));
  for (size_t times = 1; times <= 2; ++times) {
    proxy.go_away();
    REQUIRE(pool.poold().await_log("client_connection_broken", times));
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    proxy.come_back();
    CHECK(eventually([&] {
      const Finished sessions = run_to_end({program_path("pool-admin"), "--poold",
                                            "unix:" + pool.poold().admin_socket(), "--json", "sessions"});
      const auto list = parse_json(sessions.output);
      return list.size() == 1 && list[0]["state"] == "running" && list[0]["resumed"] >= times;
    }));
  }
  ::kill(app.pid(), SIGKILL);
}

TEST_CASE("a client that returns at once keeps the slot that another client waits for") {
  Pool pool({}, {"--max-sessions", "1"});
  CuttingProxy proxy(pool.poold().endpoint(), 1, 1);
  proxy.stop_cutting();
  Process app({driver_app(), "counting", "1000000", "4000"},
              pool.through({{"GPUPOOL", proxy.endpoint().text()}, {"GPUPOOL_BULK_CONNECTIONS", "0"}}));
  REQUIRE(app.await_output("working"));
  for (size_t times = 1; times <= 5; ++times) {
    proxy.cut();
    RawClient other(pool.poold().endpoint());
    other.send_hello();
    CHECK(other.receive_reply().status == hello::Status::busy);  // and not after its patience of 15 s
    REQUIRE(pool.poold().await_log("session_resumed", times));
  }
  CHECK(lines_with(pool.poold().log(), "session_ends").empty());
  ::kill(app.pid(), SIGKILL);
}

TEST_CASE("a client waits for the slot of a program that is just ending") {
  Pool pool({}, {"--max-sessions", "1"});
  RawClient leaving(pool.poold().endpoint());
  hello::Hello hello = test_hello();
  hello.can_resume = true;
  leaving.open(hello);
  const wire::Acknowledge farewell{.received = 0, .leaving = 1, .reserved = 0};
  leaving.send_command(wire::Command::acknowledge, RawClient::bytes_of(farewell));
  leaving.ping();
  RawClient next(pool.poold().endpoint());
  next.send_hello();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  leaving.close();
  CHECK(next.receive_reply().status == hello::Status::ok);
}

TEST_CASE("a stopped program keeps its session") {
  Pool pool({}, {"--max-sessions", "1"});
  Process app(kCounts, pool.through());
  REQUIRE(app.await_output("working"));
  ::kill(app.pid(), SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  RawClient other(pool.poold().endpoint());
  other.send_hello();
  CHECK(other.receive_reply().status == hello::Status::busy);
  CHECK(pool.poold().log().find("client_connection_broken") == std::string::npos);
  ::kill(app.pid(), SIGKILL);
}
