// poold's program is replaced while sessions run: programs compute as if nothing had happened.
#include <signal.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <thread>

#include "tests/e2e/upgradable.h"
#include "tests/support/certificates.h"
#include "tests/support/contains.h"
#include "tests/support/cutting_proxy.h"
#include "tests/support/raw_client.h"

using namespace gpupool;
using namespace gpupool::testing;
namespace fs = std::filesystem;

namespace {

constexpr unsigned kShare = kSanitized ? 10 : 1;  // of the rounds

void expect_counted(Process& app) {
  expect_success(app, "counted to");
}

std::vector<std::string> counting(unsigned rounds) {
  return {"counting", std::to_string(rounds / kShare), "40000"};
}

std::string end_file(const Upgradable& server) {
  return server.installed.folder().path() / "end";
}

// A program that is at work until end_programs().
std::unique_ptr<Process> start_counting(Upgradable& server, const Environment& environment = {}) {
  return server.start({"counting", "1000000", "40000", end_file(server)}, environment);
}

void end_programs(Upgradable& server) {
  server.installed.folder().write("end", "");
}

}  // namespace

TEST_CASE("programs go on while poold is upgraded") {
  Upgradable server;
  std::vector<std::unique_ptr<Process>> apps;
  for (int app = 0; app < 3; ++app) apps.push_back(start_counting(server));
  apps.push_back(server.start({"changing", end_file(server), "8"}));
  for (const auto& app : apps) REQUIRE(app->await_output("working"));
  const auto workers_of = [&] {
    std::vector<pid_t> workers;
    for (const auto& app : apps) workers.push_back(server.pool.worker_of(*app));
    return workers;
  };
  const std::vector<pid_t> workers = workers_of();
  const size_t descriptors = server.pool.poold().descriptors();
  for (size_t round = 1; round <= 5; ++round) {
    server.upgrade();
    CHECK(server.pool.poold().await_log(" upgraded ", round));
    CHECK(lines_with(server.pool.poold().log(), " upgrade_begins ").size() == round);
  }
  const Json sessions = server.ask({"sessions"});
  CHECK(sessions.size() == apps.size());
  for (const Json& session : sessions)
    CHECK(std::ranges::count(workers, session["worker_pid"].get<pid_t>()) == 1);
  if (descriptors != 0)
    CHECK(eventually([&] { return server.pool.poold().descriptors() <= descriptors + 1; }));
  end_programs(server);
  for (const auto& app : apps) {
    if (app != apps.back()) expect_counted(*app);
  }
  expect_success(*apps.back(), "nothing is lost");
  expect_counted(*server.start(counting(30)));
  CHECK(server.pool.poold().stop() == 0);
  CHECK(lines_with(server.pool.poold().log(), "session_ended").size() == apps.size() + 1);
}

TEST_CASE("encrypted programs go on while poold is upgraded") {
  const Authority authority("gpupool upgrade test");
  const auto files = authority.sign("server", "IP:127.0.0.1");
  Upgradable server(
      {"--listen", "tls://127.0.0.1:0", "--tls-certificate", files.certificate, "--tls-key", files.key});
  const std::string url = "tls://127.0.0.1:" + std::to_string(server.pool.poold().port());
  const auto app = start_counting(server, {{"GPUPOOL", url}, {"GPUPOOL_TLS_CA", authority.certificate()}});
  REQUIRE(app->await_output("working"));
  server.upgrade();
  server.upgrade();
  end_programs(server);
  expect_counted(*app);
}

TEST_CASE("clients that come while poold is upgraded are served") {
  Upgradable server;
  std::atomic<bool> ending{false};
  std::atomic<unsigned> good{0}, bad{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 2; ++caller) {
    callers.emplace_back([&] {
      while (!ending)
        ++(run_patiently({driver_app(), "short_life"}, server.pool.through()).status == 0 ? good : bad);
    });
  }
  for (unsigned round = 0; round < 12 / (kShare > 1 ? 4 : 1); ++round) server.upgrade();
  const unsigned before = good;
  CHECK(eventually([&] { return good > before + 1 || bad != 0; }));
  ending = true;
  for (std::thread& caller : callers) caller.join();
  CHECK(bad == 0);
}

TEST_CASE("a program that cannot take over changes nothing") {
  TemporaryFolder folder;
  const std::string config = folder.write("poold.toml", "max-sessions = 10\n");
  Upgradable server({"--config", config});
  const auto app = start_counting(server);
  REQUIRE(app->await_output("working"));
  const auto refused = [&](const std::string& why) {
    const Finished upgrade = server.admin({"upgrade"});
    INFO(upgrade.output);
    CHECK(upgrade.status == 1);
    CHECK_THAT(upgrade.output, Catch::Matchers::ContainsSubstring(why));
    CHECK(server.ask({"health"})["upgrades"] == 0);
  };
  SECTION("it fails") {
    server.installed.install_script("#!/bin/sh\necho the library libfuture.so.1 is missing >&2\nexit 127\n");
    refused("libfuture.so.1 is missing");
  }
  SECTION("it is killed") {
    server.installed.install_script("#!/bin/sh\nkill -9 $$\n");
    refused("signal 9");
  }
  SECTION("it is no program") {
    server.installed.install_script("no program\n");
    refused("cannot start");
  }
  SECTION("it is not there") {
    fs::remove(server.installed.path());
    refused("cannot start");
  }
  SECTION("the configuration has become wrong") {
    std::ofstream(config) << "max-sessions = 10\nno-such-option = 1\n";
    refused("no-such-option");
    std::ofstream(config) << "max-sessions = 10\n";
  }
  SECTION("it does not understand the state") {
    const std::string state = folder.write("state", "x\n");
    server.installed.install_script("#!/bin/sh\nexec 3<" + state + "; exec " + program_path("poold") +
                                    " \"$@\"\n");
    refused("not complete");
  }
  expect_counted(*server.start(counting(30)));
  server.upgrade();
  end_programs(server);
  expect_counted(*app);
}

TEST_CASE("quotas and what is charged survive an upgrade") {
  TemporaryFolder folder;
  const std::string config = folder.write(
      "poold.toml", "[[tenant]]\nname = \"default\"\n[tenant.quota]\nmemory = \"220MiB\"\nsessions = 3\n");
  Upgradable server({"--config", config});
  const auto first = server.start({"hold_memory"});
  REQUIRE(first->await_output("holding"));
  const uint64_t free_before = free_bytes(server.pool);
  REQUIRE(server.admin({"quota", "set", "default", "memory=200MiB"}).status == 0);
  server.upgrade();
  // The changed limit stays, and the first session's memory is still charged.
  CHECK(free_bytes(server.pool) == free_before - (20u << 20));
  const Finished second = run_patiently({driver_app(), "hold_memory"}, server.pool.through());
  CHECK_THAT(second.output, Catch::Matchers::ContainsSubstring("CUDA_ERROR_OUT_OF_MEMORY"));
  first->signal(SIGKILL);
  (void)first->wait();
  CHECK(eventually([&] { return free_bytes(server.pool) > (150u << 20); }));
  const Json tenants = server.ask({"tenants"});
  CHECK(tenants[0]["sessions_started"] >= 3);
}

TEST_CASE("a client's name that is no text keeps nobody from upgrading") {
  Upgradable server;
  RawClient client(server.pool.poold().endpoint());
  hello::Hello hello = test_hello();
  hello.program = hello.host = "\xff\xfe\x80 program";
  REQUIRE(client.open(hello).status == hello::Status::ok);
  server.upgrade();
  server.upgrade();
  client.ping();
  CHECK(server.ask({"sessions"}).size() == 1);
}

TEST_CASE("settings that have changed apply to sessions that were taken over") {
  TemporaryFolder folder;
  const auto made = [](const std::string& tenant) {
    const Finished token = run_to_end({program_path("poold"), "--make-token"});
    REQUIRE(token.status == 0);
    std::istringstream lines(token.output);
    std::string secret, entry;
    std::getline(lines, secret);
    std::getline(lines, entry);
    return std::pair(secret, "[[tenant]]\nname = \"" + tenant + "\"\n" + entry + "\n");
  };
  const auto kept = made("kept"), revoked = made("revoked");
  const std::string config = folder.write("poold.toml", kept.second + revoked.second);
  Upgradable server({"--config", config}, {{"SOFTGPU_MEMORY", "1GiB"}});
  const auto start = [&](const std::string& tenant, const std::string& secret) {
    const std::string file = folder.write_secret(tenant + ".token", secret + "\n");
    return server.start({"hold_memory"}, {{"GPUPOOL_TENANT", tenant}, {"GPUPOOL_TOKEN_FILE", file}});
  };
  const auto one = start("kept", kept.first), other = start("revoked", revoked.first);
  REQUIRE(one->await_output("holding"));
  REQUIRE(other->await_output("holding"));
  folder.write("poold.toml", kept.second);
  server.upgrade();
  CHECK(eventually([&] { return server.ask({"sessions"}).size() == 1; }));
  CHECK(server.ask({"sessions"})[0]["tenant"] == "kept");
}

TEST_CASE("a listener that would become open to everybody is not taken over") {
  TemporaryFolder folder;
  const std::string config = folder.write("poold.toml", "insecure = true\n");
  Upgradable server({"--config", config, "--listen", "tcp://0.0.0.0:0"});
  folder.write("poold.toml", "insecure = false\n");
  const Finished upgrade = server.admin({"upgrade"});
  CHECK(upgrade.status == 1);
  CHECK_THAT(upgrade.output, Catch::Matchers::ContainsSubstring("refusing to listen"));
  CHECK(server.ask({"health"})["upgrades"] == 0);
}

TEST_CASE("two upgrades at once are one") {
  Upgradable server;
  const auto app = start_counting(server);
  REQUIRE(app->await_output("working"));
  std::vector<std::unique_ptr<Process>> callers;
  for (int caller = 0; caller < 3; ++caller)
    callers.push_back(
        std::make_unique<Process>(admin_words(server.pool.poold(), {"upgrade"}), Environment{}));
  for (const auto& caller : callers) {
    const int status = caller->wait(kLongPatience);
    INFO(caller->output());
    CHECK((status == 0 || caller->output().find("under way") != std::string::npos));
  }
  end_programs(server);
  expect_counted(*app);
}

TEST_CASE("SIGTERM at any moment of an upgrade ends poold") {
  for (int delay_ms = 0; delay_ms <= 150; delay_ms += 10) {
    INFO("after " << delay_ms << " ms");
    Upgradable server;
    Process admin(admin_words(server.pool.poold(), {"upgrade"}), {});
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));  // the moment is what is tested
    CHECK(server.pool.poold().stop() == 0);
  }
}

TEST_CASE("new workers are of poold's version until it is upgraded") {
  Upgradable server;
  const fs::path worker = server.installed.folder().path() / "bin" / "poold-worker";
  fs::remove(worker);
  std::ofstream(worker) << "#!/bin/sh\nexit 1\n";
  fs::permissions(worker, fs::perms::owner_all);
  for (int round = 0; round < 4; ++round)
    CHECK(run_patiently({driver_app(), "short_life"}, server.pool.through()).status == 0);
}

TEST_CASE("a session resumes after an upgrade") {
  Upgradable server({"--resume-timeout", "60"});
  CuttingProxy proxy(server.pool.poold().endpoint(), uint64_t{1} << 40, 1);
  const auto app = start_counting(server, {{"GPUPOOL", proxy.endpoint().text()}});
  REQUIRE(app->await_output("working"));
  proxy.cut();
  server.upgrade();
  proxy.cut();
  REQUIRE(server.pool.poold().await_log("session_resumes"));
  server.upgrade();
  proxy.cut();
  end_programs(server);
  expect_counted(*app);
}

TEST_CASE("SIGTERM ends poold at once after an upgrade") {
  Upgradable server;
  const auto app = server.start({"hold_memory"});
  REQUIRE(app->await_output("holding"));
  server.upgrade();
  CHECK(server.pool.poold().stop() == 0);
  CHECK_THAT(server.pool.poold().log(),
             Catch::Matchers::ContainsSubstring("reason=\"poold is shutting down\""));
}

TEST_CASE("sessions of shares take turns during upgrades") {
  Upgradable server;
  const auto one = start_counting(server), two = start_counting(server);
  REQUIRE(one->await_output("working"));
  REQUIRE(two->await_output("working"));
  for (int round = 0; round < 6; ++round) server.upgrade();
  end_programs(server);
  expect_counted(*one);
  expect_counted(*two);
}

TEST_CASE("sessions move to workers of the new program") {
  const Authority authority("authority");
  const auto files = authority.sign("server", "IP:127.0.0.1");
  const std::string scheme = GENERATE("tcp", "tls");
  Upgradable server({"--listen", scheme + "://127.0.0.1:0", "--tls-certificate", files.certificate,
                     "--tls-key", files.key});
  // Pinned memory that the server maps cannot migrate.
  const Environment plain{{"GPUPOOL", scheme + "://127.0.0.1:" + std::to_string(server.pool.poold().port())},
                          {"GPUPOOL_TLS_CA", authority.certificate()},
                          {"GPUPOOL_SHM", "0"}};
  std::vector<std::unique_ptr<Process>> apps;
  apps.push_back(start_counting(server, plain));
  apps.push_back(server.start({"changing", end_file(server), "8"}, plain));
  for (const auto& app : apps) REQUIRE(app->await_output("working"));
  for (int round = 0; round < 2; ++round) {
    server.installed.install();
    const Json done = server.ask({"upgrade", "--move-workers"});
    INFO(done.dump());
    REQUIRE(done["moved"].size() == apps.size());
    for (const Json& moved : done["moved"]) CHECK(moved["migrated"] == true);
    CHECK(eventually([&] { return server.ask({"sessions"}).size() == apps.size(); }));
    for (const Json& session : server.ask({"sessions"})) CHECK(session["inherited"] == false);
  }
  end_programs(server);
  expect_counted(*apps[0]);
  expect_success(*apps[1], "nothing is lost");
}

TEST_CASE("a session that cannot move stays with its worker") {
  Upgradable server({"--resume-timeout", "0"});
  const auto app = start_counting(server);
  REQUIRE(app->await_output("working"));
  server.installed.install();
  const Finished upgrade = server.admin({"upgrade", "--move-workers"});
  INFO(upgrade.output);
  CHECK(upgrade.status == 1);
  CHECK_THAT(upgrade.output, Catch::Matchers::ContainsSubstring("can be resumed"));
  CHECK(server.ask({"sessions"})[0]["inherited"] == true);
  end_programs(server);
  expect_counted(*app);
}
