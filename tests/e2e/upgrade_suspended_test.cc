// poold's program is replaced while sessions are suspended, or are being suspended or resumed.
#include <thread>

#include "tests/e2e/suspended_program.h"
#include "tests/support/installed_poold.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

struct Installed {
  InstalledPoold installed;
};

// A program that changes everything, on a poold that can be replaced.
struct Upgradable : Installed, Changing {
  explicit Upgradable(unsigned mebibytes, std::vector<std::string> options = {}, Environment more = {})
      : Changing(mebibytes, with_metrics(std::move(options)), std::move(more), {}, installed.launcher()) {}

  static std::vector<std::string> with_metrics(std::vector<std::string> options) {
    options.insert(options.end(), {"--metrics", "127.0.0.1:0"});
    return options;
  }
  Finished try_upgrade() { return pool_admin(*pool, {"upgrade"}); }
  void upgrade(unsigned times = 1) {
    for (unsigned time = 0; time < times; ++time) {
      installed.install();
      const Finished done = try_upgrade();
      INFO(done.output);
      REQUIRE(done.status == 0);
      CHECK(json_in(done)["upgrades"] == ++upgrades);
    }
  }
  void expect_no_upgrade(const std::string& why) {
    const Finished done = try_upgrade();
    INFO(done.output);
    CHECK(done.status == 1);
    CHECK(done.output.find(why) != std::string::npos);
    CHECK(json_in(pool_admin(*pool, {"health"}))["upgrades"] == upgrades);
  }
  double metric(const std::string& name) {
    const std::string all = http_get(metrics_port(pool->poold().log()), "/metrics");
    const size_t at = all.find("\n" + name + " ");
    INFO(all);
    REQUIRE(at != std::string::npos);
    return std::stod(all.substr(at + name.size() + 2));
  }
  double bytes_in(const std::string& place) {
    return metric("gpupool_suspended_bytes{in=\"" + place + "\"}");
  }
  bool await_state(const std::string& state) {
    return eventually([&] {
      const Json seen = sessions_of(*pool);  // a session that is being resumed has a second one in its worker
      return std::any_of(seen.begin(), seen.end(), [&](const Json& one) { return one["state"] == state; });
    });
  }
  Process admin(std::vector<std::string> words) {
    words.insert(words.begin(), "--json");
    return Process(admin_words(pool->poold(), std::move(words)), {});
  }
  unsigned upgrades = 0;
};

// What pool-admin shows of the suspended session and does not change with time.
Json lasting(const Json& session) {
  Json kept;
  for (const char* const key : {"number", "tenant", "program", "host", "pid", "address", "started_ms",
                                "state", "suspended_bytes", "suspended_to", "suspended_encrypted"})
    kept[key] = session.at(key);
  return kept;
}

}  // namespace

TEST_CASE("suspended sessions survive upgrades in memory and on disk and encrypted") {
  const std::vector<std::vector<std::string>> ways{
      {"--to", "memory"}, {"--to", "disk"}, {"--to", "disk", "--encrypt"}, {"--to", "memory", "--encrypt"}};
  Upgradable server(16);
  for (unsigned times = 0; times < ways.size(); ++times) {
    const bool in_memory = ways[times][1] == "memory";
    const std::string place = in_memory ? "memory" : "disk", other = in_memory ? "disk" : "memory";
    server.expect_suspended(ways[times]);
    REQUIRE(server.await_state("suspended"));
    const Json before = lasting(sessions_of(*server.pool)[0]);
    const size_t descriptors = server.pool->poold().descriptors();
    server.upgrade(3 / kShare + 1);
    CHECK(lasting(sessions_of(*server.pool)[0]) == before);
    CHECK(server.bytes_in(place) == static_cast<double>(server.bytes));
    CHECK(server.bytes_in(other) == 0);
    CHECK(server.metric("gpupool_suspended_sessions") == 1);
    if (descriptors != 0)
      CHECK(eventually([&] { return server.pool->poold().descriptors() <= descriptors + 1; }));
    server.expect_resumed();
    CHECK(eventually([&] { return server.bytes_in(place) == 0; }));
    CHECK(server.store.count() == 0);
    CHECK(server.metric("gpupool_suspended_sessions_ended_total{result=\"resumed\"}") == times + 1);
    CHECK(server.metric("gpupool_suspensions_ended_total{result=\"suspended\"}") == times + 1);
    server.upgrade();
  }
  server.expect_nothing_lost();
  CHECK(server.pool->poold().stop() == 0);
}

TEST_CASE("a session that an earlier program has suspended is resumed on another server") {
  for (const char* const when : {"before", "after"}) {
    INFO("sent away " << when << " the upgrade");
    Upgradable server(16);
    Pool other({}, server.store.options({"--suspended-folder", server.store.folder.path()}));
    server.expect_suspended({"--to", "disk", "--encrypt"});
    const std::string copy = server.store.folder.path() / "copy";
    std::filesystem::copy_file(server.path, copy);
    Process there(admin_words(other.poold(), {"--json", "resume", "--file", copy}), {});
    CHECK(other.poold().await_log("suspended_session_found"));
    if (when == std::string("before")) {
      server.app.signal(SIGSTOP);
      server.upgrade();  // after which no client waits
      Process here = server.admin({"resume", server.number, "--at", other.poold().endpoint().text()});
      std::this_thread::sleep_for(std::chrono::milliseconds(500));  // the request has arrived
      server.upgrade();
      server.app.signal(SIGCONT);
    } else {
      server.upgrade();
      server.expect_resumed({"--at", other.poold().endpoint().text()});
    }
    CHECK(there.wait(kLongPatience) == 0);
    CHECK(sessions_of(other).size() == 1);
    CHECK(eventually([&] { return sessions_of(*server.pool).empty(); }));
    CHECK(eventually([&] { return !std::filesystem::exists(copy) && server.store.count() == 0; }));
    server.expect_nothing_lost();
  }
}

TEST_CASE("a client asks during upgrades and a request to resume outlasts them") {
  Upgradable server(4);
  server.expect_suspended();
  server.upgrade(8 / kShare);  // the client waits at poold, or asks at any moment of them
  server.app.signal(SIGSTOP);
  server.upgrade();  // after which no client waits
  Process asked = server.admin({"resume", server.number});
  REQUIRE(server.await_state("waiting for client"));
  server.upgrade();
  CHECK(server.await_state("waiting for client"));
  (void)asked.wait();  // its call has ended with the previous program
  server.app.signal(SIGCONT);
  REQUIRE(server.await_state("running"));
  server.upgrade();
  server.expect_suspended({"--to", "disk"});
  server.expect_resumed();
  server.expect_nothing_lost();
}

TEST_CASE("the limit of time for a client that is gone goes on over an upgrade") {
  for (const std::string place : {"memory", "disk"}) {
    Upgradable server(4, {"--resume-timeout", "3"});
    server.expect_suspended({"--to", place});
    ::kill(server.app.pid(), SIGKILL);
    server.upgrade(2);
    CHECK(server.pool->poold().await_log("suspended_session_dropped"));
    CHECK(sessions_of(*server.pool).empty());
    CHECK(eventually([&] { return server.store.count() == 0 && server.bytes_in(place) == 0; }));
    server.upgrade();
  }
}

TEST_CASE("an administrator ends a session that an earlier program has suspended") {
  for (const std::string place : {"memory", "disk"}) {
    Upgradable server(4);
    const size_t descriptors = server.pool->poold().descriptors();
    server.expect_suspended({"--to", place});
    server.upgrade();
    CHECK(pool_admin(*server.pool, {"kill", server.number, "--reason", "enough"}).status == 0);
    CHECK(eventually([&] { return server.store.count() == 0 && server.bytes_in(place) == 0; }));
    CHECK(server.app.wait(kLongPatience) != 0);
    INFO(server.app.output());
    CHECK(server.app.output().find("enough") != std::string::npos);
    if (descriptors != 0)
      CHECK(eventually([&] { return server.pool->poold().descriptors() <= descriptors; }));
  }
}

TEST_CASE("a session that has not answered a request to suspend it is handed over with the request") {
  for (const std::string place : {"memory", "disk"}) {
    Upgradable server(4);
    REQUIRE(server.await_state("running"));
    const std::string number = std::to_string(sessions_of(*server.pool)[0]["number"].get<uint64_t>());
    server.app.signal(SIGSTOP);
    Process asked = server.admin({"suspend", number, "--to", place, "--encrypt"});
    REQUIRE(server.await_state("suspending"));
    server.upgrade(2);
    (void)asked.wait();
    server.app.signal(SIGCONT);
    REQUIRE(server.await_state("suspended"));
    const Json seen = sessions_of(*server.pool)[0];
    CHECK(seen["suspended_encrypted"] == true);
    CHECK(server.bytes_in(place) == seen["suspended_bytes"].get<double>());
    server.number = number;
    server.upgrade();
    server.expect_resumed();
    CHECK(eventually([&] { return server.bytes_in(place) == 0; }));
    server.expect_nothing_lost();
  }
}

TEST_CASE("poold is not upgraded in the middle of a file") {
  Upgradable server(128 / kShare);
  REQUIRE(server.await_state("running"));
  const Json session = sessions_of(*server.pool)[0];
  server.number = std::to_string(session["number"].get<uint64_t>());
  Process suspending = server.admin({"suspend", server.number, "--to", "disk"});
  REQUIRE(eventually([&] { return server.store.count() == 1; }));
  ::kill(session["worker_pid"].get<pid_t>(), SIGSTOP);
  server.expect_no_upgrade("is being suspended");
  ::kill(session["worker_pid"].get<pid_t>(), SIGCONT);
  CHECK(suspending.wait(kLongPatience) == 0);
  server.upgrade();

  REQUIRE(eventually([&] {
    const Json health = json_in(pool_admin(*server.pool, {"health"}));
    return health["workers_starting"] == 0 && health["workers_idle"] > 0;
  }));
  const std::vector<pid_t> idle = server.pool->poold().workers();
  for (const pid_t worker : idle) ::kill(worker, SIGSTOP);
  Process resuming = server.admin({"resume", server.number});
  REQUIRE(server.await_state("resuming"));
  server.expect_no_upgrade("is being resumed");
  for (const pid_t worker : idle) ::kill(worker, SIGCONT);
  CHECK(resuming.wait(kLongPatience) == 0);
  server.upgrade();
  server.expect_nothing_lost();
}

TEST_CASE("a program that cannot take over leaves suspended sessions as they are") {
  Upgradable server(4);
  server.expect_suspended();
  REQUIRE(server.await_state("suspended"));
  const size_t descriptors = server.pool->poold().descriptors();
  const Json before = lasting(sessions_of(*server.pool)[0]);
  server.installed.install_script("#!/bin/sh\necho the library libfuture.so.1 is missing >&2\nexit 127\n");
  for (int time = 0; time < 3; ++time) server.expect_no_upgrade("libfuture.so.1 is missing");
  CHECK(lasting(sessions_of(*server.pool)[0]) == before);
  CHECK(server.bytes_in("memory") == static_cast<double>(server.bytes));
  if (descriptors != 0)
    CHECK(eventually([&] { return server.pool->poold().descriptors() <= descriptors + 1; }));
  server.expect_resumed();
  server.expect_suspended({"--to", "disk"});
  server.upgrade();
  server.expect_resumed();
  server.expect_nothing_lost();
}

TEST_CASE("a file that was encrypted with an earlier key is resumed after an upgrade") {
  for (const std::string place : {"memory", "disk"}) {
    Upgradable server(4);
    server.expect_suspended({"--to", place, "--encrypt"});
    server.store.folder.write_secret("key", std::string(32, 'n'));
    server.upgrade(2);
    server.expect_resumed();
    server.expect_suspended({"--to", place, "--encrypt"});
    server.expect_resumed();
    server.expect_nothing_lost();
  }
}
