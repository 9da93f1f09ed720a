// Tests pool-admin and Prometheus metrics with real programs: sessions, quotas, kill, dump.
#include <signal.h>

#include "tests/e2e/json.h"
#include "tests/e2e/pool.h"
#include "tests/support/catch.h"
#include "tests/support/has.h"
#include "tests/support/http_get.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

Json pool_admin(Pool& pool, std::vector<std::string> words) {
  words.insert(words.begin(),
               {program_path("pool-admin"), "--poold", "unix:" + pool.poold().admin_socket(), "--json"});
  const Finished finished = run_to_end(words);
  INFO(finished.output);
  REQUIRE(finished.status == 0);
  return parse_json(finished.output);
}

}  // namespace

TEST_CASE("a session is ended while its kernel runs") {
  Pool pool;
  Process program({driver_app(), "until_it_fails", "kernel"}, pool.through());
  REQUIRE(program.await_output("working"));
  Process bystander({driver_app(), "hold_memory"}, pool.through());
  REQUIRE(bystander.await_output("holding"));
  const Json before = pool_admin(pool, {"sessions"});
  REQUIRE(before.size() == 2);
  CHECK(before[0]["pid"] == program.pid());
  const auto start = std::chrono::steady_clock::now();
  pool_admin(pool, {"kill", "1", "--reason", "another needs it"});
  CHECK(program.wait() == 0);  // the program expects its calls to fail
  CHECK(program.await_end_of_output());
  CHECK(has(program.output(), "another needs it"));
  CHECK(eventually([&] { return pool_admin(pool, {"sessions"}).size() == 1; }));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
  CHECK(pool_admin(pool, {"sessions"})[0]["pid"] == bystander.pid());
  CHECK(pool.poold().await_log("reason=\"ended by an administrator: another needs it\""));
  CHECK(eventually([&] { return pool_admin(pool, {"gpus"})[0]["memory_used_bytes"] < (150u << 20); }));
}

TEST_CASE("pool-admin and metrics show the memory and time of a program while it runs and afterwards") {
  Pool pool({}, {"--metrics", "127.0.0.1:0"});
  const uint16_t port = metrics_port(pool.poold().log());
  {
    Process program({driver_app(), "hold_memory"}, pool.through());
    REQUIRE(program.await_output("holding"));
    const Json session = pool_admin(pool, {"sessions"})[0];
    REQUIRE(session["gpus"].size() == 1);
    CHECK(session["gpus"][0]["memory_used_bytes"] >= (128u << 20));
    CHECK(session["gpus"][0]["memory_used_bytes"] < (160u << 20));
    CHECK(session["gpus"][0]["memory_peak_bytes"] >= session["gpus"][0]["memory_used_bytes"]);
    const Json gpu = pool_admin(pool, {"gpus"})[0];
    CHECK(gpu["memory_total_bytes"] == 256u << 20);
    CHECK(gpu["memory_used_bytes"] == session["gpus"][0]["memory_used_bytes"]);
    CHECK(gpu["sessions"] == 1);
    const Json tenant = pool_admin(pool, {"tenants"})[0];
    CHECK(tenant["memory_used_bytes"][0] == gpu["memory_used_bytes"]);
    CHECK(has(http_get(port, "/metrics"),
              "gpupool_session_memory_used_bytes{session=\"1\",tenant=\"default\",gpu=\"0\"} 1"));
  }
  REQUIRE(pool.poold().await_log("session_ended"));
  CHECK(pool_admin(pool, {"gpus"})[0]["memory_used_bytes"] == 0);

  const Finished short_life = run_patiently({driver_app(), "short_life"}, pool.through());
  CHECK(short_life.status == 0);
  REQUIRE(pool.poold().await_log("session_ended", 2));
  const Json tenant = pool_admin(pool, {"tenants"})[0];
  CHECK(tenant["sessions_started"] == 2);
  CHECK(tenant["gpu_nanoseconds"] > 0);
  CHECK(tenant["calls"] > 5);
  CHECK(tenant["bytes_from_client"] > 200);
  CHECK(tenant["errors"] == 0);
  CHECK(pool_admin(pool, {"gpus"})[0]["gpu_nanoseconds"] == tenant["gpu_nanoseconds"]);
}

TEST_CASE("large copies are counted whichever way they take") {
  Pool pool;
  Process program({driver_app(), "until_it_fails", "write"}, pool.through());
  REQUIRE(program.await_output("working"));
  CHECK(eventually([&] { return pool_admin(pool, {"sessions"})[0]["bytes_from_client"] > (128u << 20); }));
  CHECK(pool_admin(pool, {"sessions"})[0]["bytes_to_client"] < (1u << 20));
  pool_admin(pool, {"kill", "1"});
  program.wait();
  Process reading({driver_app(), "until_it_fails", "read"}, pool.through());
  REQUIRE(reading.await_output("working"));
  const auto session = [&] {
    const Json all = pool_admin(pool, {"sessions"});
    return all[all.size() - 1];
  };
  CHECK(eventually([&] { return session()["bytes_to_client"] > (128u << 20); }));
  CHECK(session()["bytes_from_client"] < (1u << 20));
  pool_admin(pool, {"kill", "2"});
  reading.wait();
}

TEST_CASE("a quota that is set holds for programs that run already") {
  Pool pool;
  Process program({driver_app(), "hold_memory"}, pool.through());
  REQUIRE(program.await_output("holding"));
  pool_admin(pool, {"quota", "set", "default", "memory=140MiB"});
  const Finished refused = run_patiently({driver_app(), "hold_memory"}, pool.through());
  CHECK(refused.status != 0);
  CHECK(eventually([&] { return pool_admin(pool, {"tenants"})[0]["over_quota"] > 0; }));
  const Json quota = pool_admin(pool, {"quota", "set", "default", "memory=unlimited"});
  CHECK(quota["default"]["memory_bytes"].is_null());
  program.signal(SIGKILL);
  program.wait();
  REQUIRE(pool.poold().await_log("session_ended", 2));
  Process again({driver_app(), "hold_memory"}, pool.through());
  CHECK(again.await_output("holding"));
}

TEST_CASE("a dump shows why the streams of a session do not go on") {
  Pool pool;
  Process program({driver_app(), "stuck_behind_host_function"}, pool.through());
  REQUIRE(program.await_output("launched"));
  Json dump;
  const bool kept = eventually([&] {
    dump = pool_admin(pool, {"dump", "1"});
    return dump["worker"]["backlog"] == 6;  // five launches and the synchronize_stream
  });
  INFO(dump.dump());
  REQUIRE(kept);
  CHECK(dump["pid"] == program.pid());
  const Json& worker = dump["worker"];
  CHECK(worker["executor"]["command"] == "");
  REQUIRE(worker["gates"].size() == 1);
  CHECK(worker["gates"][0]["reason"] == "a host function");
  CHECK(worker["kept"][0]["command"] == "launch");
  CHECK(worker["kept"][0]["stream"] == worker["gates"][0]["stream"]);
  CHECK(worker["kept"][0]["waits_for"] == "its stream's gate");
  CHECK(worker["kept"][5]["command"] == "synchronize_stream");
  CHECK(worker["executed"].get<uint64_t>() + 6 == worker["received"]);
  const Finished unknown =
      run_to_end({program_path("pool-admin"), "--poold", "unix:" + pool.poold().admin_socket(), "dump", "2"});
  CHECK(unknown.status == 1);
  CHECK(has(unknown.output, "there is no session 2"));
}
