// Tests of the program pool-admin with a real poold.
#include <signal.h>

#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "protocol/wire/migration.h"
#include "tests/server/fake_device_library.h"
#include "tests/support/catch.h"
#include "tests/support/has.h"
#include "tests/support/hostile_text.h"
#include "tests/support/poold_process.h"
#include "tests/support/raw_client.h"

using namespace gpupool;
using namespace gpupool::testing;
using Json = nlohmann::json;

namespace {

Finished pool_admin(std::vector<std::string> words, Environment environment = {}) {
  words.insert(words.begin(), program_path("pool-admin"));
  environment.emplace("GPUPOOL_ADMIN", "");
  return run_to_end(words, environment);
}
Finished pool_admin(const PooldProcess& poold, std::vector<std::string> words) {
  words.insert(words.begin(), {"--poold", "unix:" + poold.admin_socket()});
  return pool_admin(words);
}
Json json_of(const PooldProcess& poold, std::vector<std::string> words) {
  words.push_back("--json");
  const Finished finished = pool_admin(poold, words);
  INFO(finished.output);
  CHECK(finished.output.find('\n') == finished.output.size() - 1);
  return Json::parse(finished.output);
}

}  // namespace

TEST_CASE("pool-admin prints its version and its help") {
  const Finished version = pool_admin({"--version"});
  CHECK(version.status == 0);
  CHECK(version.output.starts_with("pool-admin "));
  const Finished help = pool_admin({"--help"});
  CHECK(help.status == 0);
  for (const char* word : {"gpus", "sessions", "tenants", "quota", "kill", "dump", "migrate", "top", "health",
                           "--poold", "--json", "Exit status"}) {
    INFO(word);
    CHECK(has(help.output, word));
  }
  CHECK(pool_admin({"quota", "set", "--help"}).status == 0);
  CHECK(has(pool_admin({"migrate", "--help"}).output, "--to"));
}

TEST_CASE("pool-admin exits with status 2 and names an invalid argument") {
  struct Case {
    std::vector<std::string> words;
    const char* named;
  };
  const auto wrong =
      GENERATE(Case{{}, "tenants"}, Case{{"bogus"}, "bogus"}, Case{{"gpus", "extra"}, "extra"},
               Case{{"--nonsense", "gpus"}, "--nonsense"}, Case{{"quota"}, "show"},
               Case{{"quota", "set"}, "TENANT"}, Case{{"quota", "set", "default"}, "SETTING"},
               Case{{"kill"}, "SESSION"}, Case{{"kill", "--resaon", "x"}, "unknown option '--resaon'"},
               Case{{"quota", "set", "--unknown"}, "unknown option '--unknown'"}, Case{{"kill", "x"}, "'x'"},
               Case{{"kill", "99999999999999999999"}, "'99999999999999999999'"}, Case{{"kill", "-1"}, "-1"},
               Case{{"dump"}, "SESSION"}, Case{{"dump", "x"}, "'x'"}, Case{{"dump", "1", "2"}, "2"},
               Case{{"migrate", "1"}, "--to"}, Case{{"migrate", "x", "--to", "tcp://h:1"}, "'x'"},
               Case{{"migrate", "--to", "tcp://h:1"}, "SESSION"},
               Case{{"migrate", "1", "--to", "tcp://h:1", "--timeout", "601"}, "--timeout"},
               Case{{"top", "--interval", "0.01"}, "--interval"}, Case{{"top", "--count", "x"}, "--count"},
               Case{{"--poold", "name", "gpus"}, "'name'"}, Case{{"--poold", "0", "gpus"}, "'0'"},
               Case{{"--poold", "unix:", "gpus"}, "unix:PATH"});
  const Finished finished = pool_admin(wrong.words);
  INFO(finished.output);
  CHECK(finished.status == 2);
  CHECK(has(finished.output, "pool-admin: "));
  CHECK(has(finished.output, wrong.named));
}

TEST_CASE("pool-admin distinguishes a scheduler command without a scheduler from an unknown command") {
  const Environment none{{"GPUPOOL_SCHEDULER", ""}};
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"leases"},
                                             {"queue"},
                                             {"nodes"},
                                             {"nodes", "--json"},
                                             {"--token-file", "x", "nodes"},
                                             {"drain", "n1"},
                                             {"undrain", "n1"},
                                             {"policy", "show"},
                                             {"evict", "1"},
                                             {"move", "1"},
                                             {"why", "q1"},
                                             {"quota", "clear", "a"}}) {
    const Finished finished = pool_admin(words, none);
    INFO(finished.output);
    CHECK(finished.status == 2);
    CHECK(has(finished.output, "is a command for a pool's scheduler: set --scheduler HOST:PORT"));
  }
  CHECK(has(pool_admin({"bogus"}, none).output, "unknown command 'bogus'"));
  for (const char* const word : {"sessions", "kill", "migrate"}) {
    CHECK(has(pool_admin({"--scheduler", "127.0.0.1:1", word}, none).output,
              "is a command for a poold on this host"));
  }
  // Every command that only a scheduler has is covered by the hint.
  const std::string of_pool = pool_admin({"--scheduler", "127.0.0.1:1", "--help"}, none).output,
                    of_poold = pool_admin({"--help"}, none).output;
  const auto commands = [](const std::string& help) {
    std::set<std::string> all;
    std::istringstream lines(help);
    bool there = false;
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("Subcommands:") || line.starts_with("SUBCOMMANDS:"))
        there = true;
      else if (line.empty())
        there = false;  // what follows is the footer
      else if (there && line.starts_with("  ") && line[2] != ' ')
        all.insert(line.substr(2, line.find(' ', 2) - 2));
    }
    return all;
  };
  CHECK(commands(of_poold).contains("sessions"));
  for (const std::string& word : commands(of_pool)) {
    if (!commands(of_poold).contains(word)) CHECK(has(pool_admin({word}, none).output, "pool's scheduler"));
  }
}

TEST_CASE("pool-admin exits with status 3 and gives advice if poold is unreachable") {
  const TemporaryFolder folder;
  const Finished nowhere =
      pool_admin({"--poold", "unix:" + std::string(folder.path() / "none.sock"), "gpus"});
  CHECK(nowhere.status == 3);
  CHECK(has(nowhere.output, "none.sock"));
  const Finished port = pool_admin({"--poold", "1", "gpus"});
  CHECK(port.status == 3);
  CHECK(has(port.output, "poold-1.sock"));
  const std::string path = folder.write("no-socket", "");
  const Finished file = pool_admin({"gpus"}, Environment{{"GPUPOOL_ADMIN", "unix:" + path}});
  CHECK(file.status == 3);
  CHECK(has(file.output, path));
}

TEST_CASE("every table is also available as JSON") {
  PooldProcess poold(kDevice);
  RawClient program(poold.endpoint());
  hello::Hello hello = test_hello();
  hello.program = "train.py";
  program.open(hello);
  program.ping();

  const Finished gpus = pool_admin(poold, {"gpus"});
  CHECK(gpus.status == 0);
  CHECK(has(gpus.output, "GPU-"));
  const Json gpus_json = json_of(poold, {"gpus"});
  REQUIRE(gpus_json.size() == 2);
  CHECK(gpus_json[1]["index"] == 1);
  CHECK(gpus_json[0]["memory_total_bytes"].is_number_unsigned());

  const Finished sessions = pool_admin(poold, {"sessions"});
  CHECK(has(sessions.output, "train.py"));
  const Json sessions_json = json_of(poold, {"sessions"});
  REQUIRE(sessions_json.size() == 1);
  CHECK(sessions_json[0]["number"] == 1);
  CHECK(sessions_json[0]["calls"] == 1);
  CHECK(sessions_json[0]["gpus"].is_array());
  const Finished nobody = pool_admin(poold, {"sessions", "--tenant", "nobody"});
  CHECK(nobody.status == 1);
  CHECK(nobody.output == "pool-admin: unknown tenant 'nobody'\n");

  CHECK(has(pool_admin(poold, {"tenants"}).output, "default"));
  CHECK(json_of(poold, {"tenants"})[0]["quota"]["compute_percent"] == 100);

  const Finished health = pool_admin(poold, {"health"});
  CHECK(health.status == 0);
  CHECK(has(health.output, "\nready\n"));
  CHECK(json_of(poold, {"health"})["sessions"] == 1);
}

TEST_CASE("program names are escaped and truncated") {
  PooldProcess poold(kDevice);
  RawClient program(poold.endpoint());
  hello::Hello hello = test_hello();
  hello.program = kHostileText + std::string(20'000, 'p');
  hello.host = kHostileText + std::string(20'000, 'h');
  program.open(hello);
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"sessions"}, {"dump", "1"}, {"top", "--count", "2", "--interval", "0.1"}}) {
    const Finished shown = pool_admin(poold, command);
    INFO(shown.output);
    CHECK(shown.status == 0);
    CHECK(has(shown.output, "?]0;owned?"));
    CHECK(is_harmless(shown.output));
    CHECK(shown.output.size() < 8 * 1024);
  }
  const std::string shown = json_of(poold, {"sessions"})[0]["program"];
  CHECK(is_harmless(shown));
  CHECK(shown.size() == 256);
}

TEST_CASE("quotas are shown and changed and an invalid change is explained") {
  PooldProcess poold(kDevice);
  const Finished set =
      pool_admin(poold, {"quota", "set", "default", "memory=8GiB", "compute=25", "mode=hard"});
  CHECK(set.status == 0);
  CHECK(has(set.output, "8.0 GiB"));
  CHECK(json_of(poold, {"sessions", "--tenant", "default"}).empty());
  const Finished none = pool_admin(poold, {"sessions", "--tenant", "default"});
  CHECK(none.status == 0);
  CHECK(none.output == "no sessions\n");
  const Json shown = json_of(poold, {"quota", "show", "default"});
  CHECK(shown["default"]["memory_bytes"] == 8ull << 30);
  CHECK(shown["default"]["mode"] == "hard");
  CHECK(json_of(poold, {"quota", "show"}) == shown);
  CHECK(has(pool_admin(poold, {"quota", "show"}).output, "25 %"));
  CHECK(json_of(poold, {"quota", "set", "default", "memory=unlimited"})["default"]["memory_bytes"].is_null());

  const Finished large = pool_admin(poold, {"quota", "set", "default", "memory=100TiB"});
  CHECK(large.status == 0);
  CHECK(has(large.output,
            "pool-admin: warning: memory=100TiB has no effect: no GPU of this poold has more than "));
  CHECK(poold.await_log("quota_without_effect tenant=default quota_memory=109951162777600 "));
  CHECK_FALSE(has(pool_admin(poold, {"quota", "set", "default", "memory=1MiB"}).output, "warning"));

  const Finished nobody = pool_admin(poold, {"quota", "set", "nobody", "compute=5"});
  CHECK(nobody.status == 1);
  CHECK(has(nobody.output, "'nobody'"));
  CHECK(pool_admin(poold, {"quota", "show", "nobody"}).status == 1);
  const Finished wrong = pool_admin(poold, {"quota", "set", "default", "compute=101"});
  CHECK(wrong.status == 2);
  CHECK(has(wrong.output, "compute"));
  CHECK(json_of(poold, {"quota", "show"})["default"]["compute_percent"] == 25);
}

TEST_CASE("the share of a GPU is set by index or UUID and reset") {
  PooldProcess poold(kDevice);
  const std::string uuid = json_of(poold, {"gpus"})[1]["uuid"];
  json_of(poold, {"quota", "set", "default", "memory=8GiB", "compute=50"});
  const Json set = json_of(poold, {"quota", "set", "default", "--gpu", uuid, "compute=12.5"})["default"];
  CHECK(set["compute_percent"] == 50);
  REQUIRE(set["gpus"].size() == 1);
  CHECK(set["gpus"][0]["gpu"] == 1);
  CHECK(set["gpus"][0]["compute_percent"] == 12.5);
  CHECK(set["gpus"][0]["memory_bytes"] == 8ull << 30);  // inherited from the limit of every GPU
  CHECK(json_of(poold, {"quota", "set", "default", "memory=4GiB"})["default"]["gpus"][0]["memory_bytes"] ==
        4ull << 30);
  CHECK(json_of(poold, {"gpus"})[0]["compute_sold_percent"] == 50);
  CHECK(json_of(poold, {"gpus"})[1]["compute_sold_percent"] == 12.5);
  CHECK(has(pool_admin(poold, {"quota", "show"}).output, "  GPU 1"));
  CHECK(json_of(poold, {"quota", "set", "default", "--gpu", "1", "default",
                        "memory=1GiB"})["default"]["gpus"][0]["compute_percent"] == 50);
  CHECK(json_of(poold, {"quota", "set", "default", "--gpu", "1", "default"})["default"]["gpus"].empty());

  CHECK(pool_admin(poold, {"quota", "set", "default", "default"}).status == 2);
  const Finished none = pool_admin(poold, {"quota", "set", "default", "--gpu", "2", "compute=5"});
  CHECK(none.status == 1);
  CHECK(has(none.output, "no GPU '2'"));
  const Finished not_its = pool_admin(poold, {"quota", "set", "default", "--gpu", "0", "sessions=5"});
  CHECK(not_its.status == 1);
  CHECK(has(not_its.output, "per-GPU limits accept only"));
}

TEST_CASE("sessions are killed with a reason") {
  PooldProcess poold(kDevice);
  RawClient program(poold.endpoint());
  program.open();
  program.ping();
  const Finished killed = pool_admin(poold, {"kill", "1", "77", "--reason", "maintenance"});
  CHECK(killed.status == 1);
  CHECK(has(killed.output, "session 1 is ending"));
  CHECK(has(killed.output, "there is no session 77"));
  const auto heard = program.await_end();
  REQUIRE(heard);
  CHECK(has(*heard, "maintenance"));
  RawClient another(poold.endpoint());
  another.open();
  another.ping();
  const Json json = json_of(poold, {"kill", "2"});
  REQUIRE(json.size() == 1);
  CHECK(json[0]["session"] == 2);
  CHECK(json[0]["grace_ms"] > 0);
}

TEST_CASE("a session is dumped as text and as JSON and an unknown session is an error") {
  PooldProcess poold(kDevice);
  RawClient program(poold.endpoint());
  hello::Hello hello = test_hello();
  hello.program = "train.py";
  program.open(hello);
  program.ping();
  const Finished text = pool_admin(poold, {"dump", "1"});
  CHECK(text.status == 0);
  CHECK(has(text.output, "session 1 of tenant default: train.py, process "));
  CHECK(has(text.output, "\nexecutor: idle\n"));
  CHECK(has(text.output, "commands: 1 received, 1 executed, 0 in the backlog"));
  const Json json = json_of(poold, {"dump", "1"});
  CHECK(json["program"] == "train.py");
  CHECK(json["worker"]["executor"]["command"] == "");
  CHECK(json["worker"]["received"] == 1);
  const Finished unknown = pool_admin(poold, {"dump", "77"});
  CHECK(unknown.status == 1);
  CHECK(has(unknown.output, "there is no session 77"));
}

TEST_CASE("pool-admin finds a single poold by itself and requires a choice between two") {
  const TemporaryFolder folder;
  const auto socket = [&](const char* port) {
    return std::vector<std::string>{"--admin-socket",
                                    folder.path() / (std::string("poold-") + port + ".sock")};
  };
  const Environment here{{"RUNTIME_DIRECTORY", folder.path()}};
  CHECK(pool_admin({"health"}, here).status == 3);
  PooldProcess first(kDevice, socket("9700"));
  CHECK(pool_admin({"health"}, here).status == 0);
  PooldProcess second(kDevice, socket("9701"));
  const Finished which = pool_admin({"health"}, here);
  CHECK(which.status == 2);
  CHECK(has(which.output, "9700, 9701"));
  CHECK(pool_admin({"--poold", "9701", "health"}, here).status == 0);
}

TEST_CASE("a session is asked to migrate and its answer is the exit status") {
  const bool json = GENERATE(false, true);
  PooldProcess poold(kDevice, {"--resume-timeout", "20"});
  RawClient program(poold.endpoint());
  hello::Hello hello = test_hello();
  hello.can_migrate = hello.can_resume = true;
  program.open(hello);
  for (const bool migrates : {false, true}) {
    std::vector<std::string> words{"migrate", "1", "--to", "tcp://gpu-2:9700"};
    if (json) words.push_back("--json");
    auto asked = std::async(std::launch::async, [&] { return pool_admin(poold, words); });
    Message wish;
    do wish = program.receive_message();
    while (wish.header.kind != wire::MessageKind::migration_wish);
    wire::EndMigration answer{.migrated = migrates ? 1u : 0u};
    wish.body.copy(reinterpret_cast<char*>(&answer.number), sizeof answer.number);
    const std::string reason = std::string("\2\0\0\0no", 6);
    program.send_command(wire::Command::end_migration,
                         std::string(RawClient::bytes_of(answer)) + (migrates ? "" : reason));
    const Finished finished = asked.get();
    INFO(finished.output);
    CHECK(finished.status == (migrates ? 0 : 1));
    if (json) {
      const Json said = Json::parse(finished.output);
      CHECK(said["session"] == 1);
      CHECK(said["migrated"] == migrates);
      CHECK(said["reason"] == (migrates ? "" : "no"));
      CHECK(said["milliseconds"].is_number());
    } else {
      CHECK(has(finished.output, migrates ? "session 1 has migrated to tcp://gpu-2:9700 in "
                                          : "pool-admin: session 1 has not migrated: no"));
    }
  }
  const Finished unknown = pool_admin(poold, {"migrate", "77", "--to", "tcp://gpu-2:9700"});
  CHECK(unknown.status == 1);
  CHECK(has(unknown.output, "there is no session 77"));
}

TEST_CASE("a migration that takes longer than --timeout is reported as going on") {
  PooldProcess poold(kDevice, {"--resume-timeout", "20"});
  RawClient program(poold.endpoint());
  hello::Hello hello = test_hello();
  hello.can_migrate = hello.can_resume = true;
  program.open(hello);
  const Finished finished = pool_admin(poold, {"migrate", "1", "--to", "tcp://gpu-2:9700", "--timeout", "1"});
  INFO(finished.output);
  CHECK(finished.status == 1);
  CHECK(has(finished.output, "has not answered within 1 s"));
}

TEST_CASE("the stale admin socket of a killed poold is ignored") {
  const TemporaryFolder folder;
  const auto socket = [&](const char* port) {
    return std::vector<std::string>{"--admin-socket",
                                    folder.path() / (std::string("poold-") + port + ".sock")};
  };
  const Environment here{{"RUNTIME_DIRECTORY", folder.path()}};
  PooldProcess killed(kDevice, socket("9700"));
  killed.process().signal(SIGKILL);
  killed.process().wait();
  REQUIRE(std::filesystem::is_socket(folder.path() / "poold-9700.sock"));
  const Finished none = pool_admin({"health"}, here);
  CHECK(none.status == 3);
  CHECK(has(none.output, "no poold found in " + folder.path().string()));
  PooldProcess alive(kDevice, socket("9701"));
  const Finished one = pool_admin({"health"}, here);
  INFO(one.output);
  CHECK(one.status == 0);
  CHECK(has(one.output, "process " + std::to_string(alive.pid()) + ","));
}
