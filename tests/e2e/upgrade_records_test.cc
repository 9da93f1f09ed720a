// What poold has counted and recorded goes on when its program is replaced: metrics and the audit file.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "tests/e2e/upgradable.h"
#include "tests/support/full_pipe.h"
#include "tests/support/http_get.h"
#include "tests/support/raw_client.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

// The values of all counters, by name and labels.
std::map<std::string, double> counters_of(const PooldProcess& poold) {
  std::istringstream lines(http_get(metrics_port(poold.log()), "/metrics"));
  std::map<std::string, double> counters;
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.rfind(' ');
    if (line.starts_with('#') || space == std::string::npos) continue;
    const std::string name = line.substr(0, space);
    if (name.substr(0, name.find('{')).ends_with("_total")) counters[name] = std::stod(line.substr(space));
  }
  return counters;
}

std::vector<Json> records_in(const std::string& text) {
  std::vector<Json> records;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('{')) records.push_back(parse_json(line));
  }
  return records;
}

void refuse_client(const PooldProcess& poold) {
  RawClient client(poold.endpoint());
  client.send_preamble({.protocol_version = 1234});
  (void)client.await_end();
}

}  // namespace

TEST_CASE("the audit goes on over an upgrade without a gap") {
  TemporaryFolder folder;
  const std::string audit = folder.path() / "audit.json";
  Upgradable server({"--audit-file", audit});
  for (int round = 0; round < 3; ++round) {
    CHECK(run_patiently({driver_app(), "short_life"}, server.pool.through()).status == 0);
    server.upgrade();
  }
  CHECK(server.pool.poold().stop() == 0);
  std::ifstream lines(audit);
  std::string line, boot;
  int64_t expected = 0;
  size_t upgraded = 0;
  while (std::getline(lines, line)) {
    const Json record = parse_json(line);
    if (boot.empty()) boot = record["boot"];
    CHECK(record["boot"] == boot);
    CHECK(record["seq"] == ++expected);
    if (record["event"] != "upgraded") continue;
    ++upgraded;
    CHECK(record["from"] == record["to"]);
    CHECK(record["sessions"] == 0);
  }
  CHECK(expected >= 12);
  CHECK(upgraded == 3);
}

TEST_CASE("every counter goes on over an upgrade") {
  Upgradable server({"--metrics", "127.0.0.1:0", "--resume-timeout", "0"});
  for (int program = 0; program < 2; ++program)
    CHECK(server.start({"load_big", std::to_string(3 << 20)})->wait(kLongPatience) == 0);
  const auto app = server.start({"counting", "1000", "40000"}, {{"GPUPOOL_SHM", "0"}});
  REQUIRE(app->await_output("working"));
  for (int client = 0; client < 3; ++client) refuse_client(server.pool.poold());
  const std::string session = std::to_string(server.ask({"sessions"}).back()["number"].get<uint64_t>());
  CHECK(server.admin({"migrate", session, "--to", "tcp://127.0.0.1:1"}).status == 1);
  const auto before = counters_of(server.pool.poold());
  for (const char* const name : {"gpupool_handshake_failures_total", "gpupool_sessions_started_total",
                                 "gpupool_image_cache_misses_total", "gpupool_image_cache_hits_total",
                                 "gpupool_migrations_ended_total{result=\"failed\"}",
                                 "gpupool_tenant_calls_total{tenant=\"default\"}"}) {
    INFO(name);
    REQUIRE(before.contains(name));
    CHECK(before.at(name) > 0);
  }
  for (int round = 0; round < 2; ++round) {
    server.upgrade();
    const auto after = counters_of(server.pool.poold());
    for (const auto& [name, value] : before) {
      INFO(name);
      REQUIRE(after.contains(name));
      CHECK(after.at(name) >= value);
    }
  }
}

TEST_CASE("an upgrade waits for records that are not in the audit file yet") {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "audit";
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  const int reader = ::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  Upgradable server({"--audit-file", path});
  fill_pipe(reader);
  REQUIRE(server.admin({"quota", "set", "default", "sessions=7"}).status == 0);
  REQUIRE(server.pool.poold().await_log("audit_stalled"));
  const Finished refused = server.admin({"upgrade"});
  INFO(refused.output);
  CHECK(refused.status == 1);
  CHECK(refused.output.find("cannot write its audit file") != std::string::npos);

  server.installed.install();
  Process admin(admin_words(server.pool.poold(), {"upgrade"}), {});
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // poold waits by now, or has refused
  std::string text;
  const auto drain = [&] {
    char bytes[64 * 1024];
    for (ssize_t got = 0; (got = ::read(reader, bytes, sizeof bytes)) > 0;)
      text.append(bytes, static_cast<size_t>(got));
  };
  CHECK(eventually([&] {
    drain();
    return server.pool.poold().log().find(" upgraded ") != std::string::npos;
  }));
  CHECK(admin.wait() == 0);
  drain();
  ::close(reader);
  text.erase(0, text.find('{'));
  int64_t expected = 0;
  for (const Json& record : records_in(text)) CHECK(record["seq"] == ++expected);
  for (const char* const what : {"\"set_quota\"", "\"upgrade\"", "\"upgraded\""})
    CHECK(text.find(what) != std::string::npos);
}

TEST_CASE("refused clients that an upgrade finds counted are recorded") {
  const TemporaryFolder folder;
  const Finished token = run_to_end({program_path("poold"), "--make-token"});
  REQUIRE(token.status == 0);
  std::istringstream lines(token.output);
  std::string secret, entry;
  std::getline(lines, secret);
  std::getline(lines, entry);
  const std::string config = folder.write("poold.toml", "[[tenant]]\nname = \"a\"\n" + entry + "\n"),
                    audit = folder.path() / "audit.json";
  Upgradable server({"--audit-file", audit, "--config", config});
  constexpr size_t kClients = 40;  // more than get records of their own
  for (size_t client = 0; client < kClients; ++client) {
    RawClient one(server.pool.poold().endpoint());
    one.send_hello();
    (void)one.await_end();
  }
  server.upgrade();
  const auto refused = [&] {
    size_t count = 0;
    for (const Json& record : records_in(content_of(audit))) {
      if (record["event"] == "session_denied") ++count;
      if (record["event"] == "sessions_denied_too") count += record["count"].get<size_t>();
    }
    return count;
  };
  CHECK(eventually([&] { return refused() == kClients; }));
}
