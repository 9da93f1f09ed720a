// Tests of pool-scheduler as a program: options, configuration, a standby, metrics.
#include <signal.h>
#include <sys/stat.h>

#include <fstream>

#include "tests/scheduler/service/clients.h"
#include "tests/scheduler/service/scheduler_process.h"
#include "tests/support/catch.h"
#include "tests/support/certificates.h"
#include "tests/support/contains.h"
#include "tests/support/http_get.h"
#include "tests/support/poold_process.h"

using namespace gpupool;
using namespace gpupool::testing;
using namespace std::chrono_literals;

TEST_CASE("pool-scheduler starts and reports invalid options and exits cleanly") {
  TemporaryFolder folder;
  const std::string program = program_path("pool-scheduler");
  const std::string key = folder.path() / "key.pem", store = "sqlite:" + (folder.path() / "pool.db").string();
  CHECK(run_to_end({program, "--version"}).output.starts_with("pool-scheduler "));
  CHECK(run_to_end({program, "--help"}).status == 0);
  CHECK(run_to_end({program}).status == 2);
  const Finished unknown = run_to_end({program, "--nonsense"});
  CHECK(unknown.status == 2);
  CHECK(unknown.output == "pool-scheduler: unknown option '--nonsense'; see pool-scheduler --help\n");
  const Finished printed = run_to_end({program, "--key", key, "--print-public-key"});
  CHECK(printed.output.starts_with("pool-scheduler: created a new key in '" + key + "'"));
  struct stat info {};
  REQUIRE(::stat(key.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  const Finished again = run_to_end({program, "--key", key, "--print-public-key"});
  CHECK(again.output.starts_with("-----BEGIN PUBLIC KEY-----"));
  CHECK(printed.output.ends_with("\n" + again.output));
  CHECK(printed.output.find("; start pool-scheduler with --key " + key + "\n") != std::string::npos);
  const std::string other = folder.path() / "other.pem",
                    config = folder.write("key.toml", "key = '" + other + "'\n");
  const Finished named = run_to_end({program, "--config", config, "--print-public-key"});
  CHECK(named.output.starts_with("pool-scheduler: created a new key in '" + other +
                                 "'; start pool-scheduler with --config " + config + ", which names it\n"));
  const Finished open = run_to_end({program, "--key", key, "--store", store, "--listen", "0.0.0.0:0"});
  CHECK(open.status == 1);
  CHECK(open.output.find("other machines can reach it") != std::string::npos);
  CHECK(run_to_end({program, "--key", key, "--store", "sqlite:/nowhere/x"}).status == 1);
  CHECK(run_to_end({program, "--key", key, "--store", store, "--listen", "nonsense"}).status == 1);
  CHECK(run_to_end({program, "--key", key, "--store", store, "--config",
                    folder.write("bad.toml", "[[tenant]]\nname = \"a b\"\n")})
            .status == 2);

  SchedulerProcess scheduler;
  SimulatedPoolds poolds(scheduler.address(), 1, 1);
  REQUIRE(poolds.await());
  LeaseClient holder(connect(scheduler.address()), request_call(1, 1000));
  REQUIRE(holder.granted());
  CHECK(scheduler.stop() == 0);
  CHECK(holder.status().error_code() == grpc::StatusCode::UNAVAILABLE);
}

TEST_CASE(
    "pool-scheduler refuses keys that others can read, a configuration that they can write, and plaintext to "
    "another host's etcd") {
  TemporaryFolder folder;
  const Authority authority("authority");
  const Authority::Files files = authority.sign("scheduler", "IP:127.0.0.1");
  const std::string key = folder.path() / "key.pem",
                    sqlite = "sqlite:" + (folder.path() / "pool.db").string(),
                    config = folder.write("pool.toml", "");
  const auto permit = [](const std::string& file, unsigned mode) {
    std::filesystem::permissions(file, std::filesystem::perms(mode));
  };
  const auto refusal = [&](std::vector<std::string> options) {
    options.insert(options.begin(),
                   {program_path("pool-scheduler"), "--listen", "127.0.0.1:0", "--key", key});
    const Finished finished = run_to_end(options);
    CHECK((finished.status == 1 || finished.status == 2));
    return finished.output;
  };
  const std::string plaintext = refusal({"--store", "etcd://127.0.0.1:1,192.0.2.1:2379/pool"});
  CHECK_THAT(plaintext, Catch::Matchers::ContainsSubstring(
                            "refusing to use the store etcd://127.0.0.1:1,192.0.2.1:2379/pool: "
                            "192.0.2.1:2379 is on another host"));
  CHECK_THAT(plaintext, Catch::Matchers::ContainsSubstring("etcds://") &&
                            Catch::Matchers::ContainsSubstring("--insecure"));
  CHECK_FALSE(std::filesystem::exists(key));

  permit(files.key, 0644);
  const std::string unsafe = "refusing to use '" + files.key + "': other users can read it; run chmod 600";
  CHECK_THAT(refusal({"--store", sqlite, "--tls-certificate", files.certificate, "--tls-key", files.key}),
             Catch::Matchers::ContainsSubstring(unsafe));
  CHECK_THAT(refusal({"--store", "etcds://127.0.0.1:1", "--store-certificate", files.certificate,
                      "--store-key", files.key}),
             Catch::Matchers::ContainsSubstring(unsafe));
  permit(config, 0646);
  CHECK_THAT(
      refusal({"--store", sqlite, "--config", config}),
      Catch::Matchers::ContainsSubstring("refusing to use '" + config + "': other users can write it"));
}

TEST_CASE("a configuration error names the tenant and the valid form") {
  const std::pair<std::string, std::string> mistakes[] = {
      {"[tenant]\nname = 'a'", "tenant: must be an array of tables; write [[tenant]], not [tenant]"},
      {"[[tenant]]\nname = 'a'\n[[tenant]]\nname = 'b'\nquota = { gpus = 'x' }",
       "tenant 'b': quota.gpus: must be a number of GPUs, like 2 or 0.5"},
      {"[[tenant]]\nname = 'b'\nquota = { highest_priority = 'urgent' }",
       "tenant 'b': quota.highest_priority: must be low, normal or high"},
      {"[[tenant]]\nname = 'b'\nquota = { compute = 50 }",
       "tenant 'b': quota.compute: use gpus instead: gpus = 0.5 is half of a GPU"},
      {"[[tenant]]\nname = 'b'\nquota = { highest-priorty = 'low' }", "; did you mean 'highest_priority'?"},
      {"[[tenant]]\nname = 'b'\nquota = { highest-priority = 'urgent' }",
       "tenant 'b': quota.highest-priority: must be low, normal or high"},
      {"[[tenant]]\nquota = { gpus = 0.5 }", "tenant at line 1: name: missing"},
      {"[[node]]\nname = 'n'\ntokens = 'x'", "node 'n': tokens: must be an array"},
      {"store = sqlite:pool.db", "; strings need quotes: store = \"sqlite:pool.db\""},
      {"[[tenant]]\nname = 'b'\nquota = { memory = '8' }",
       "tenant 'b': quota.memory: '8' is 8 bytes: did you mean 8GiB?"},
      {"[[tenant]]\nname = 'b'\nquota = { memory = 8 }",
       "tenant 'b': quota.memory: '8' is 8 bytes: did you mean 8GiB?"},
      {"[[tenant]]\nname = 'b'\nquota = { gpus = 2, memory = 8GiB }", "line 3: "},
      {"[[tenant]]\nname = 'b'\nquota = { gpus = 2, memory = 8GiB }",
       "; strings need quotes: memory = \"8GiB\""},
      {"[[tenant]]\nname = b", "; strings need quotes: name = \"b\""},
      {"policy = 'spread'", "policy: not a key of this file; change the policy with `pool-admin policy set"},
      {"listen = 'tcp://127.0.0.1:0'",
       "cannot listen on 'tcp://127.0.0.1:0': must be HOST:PORT, like 127.0.0.1:9800"},
      {"address = 'tcp://127.0.0.1:9800'", "--address: 'tcp://127.0.0.1:9800' is not HOST:PORT"},
  };
  TemporaryFolder folder;
  const std::string key = folder.path() / "key.pem", store = "sqlite:" + (folder.path() / "pool.db").string();
  for (const auto& [text, said] : mistakes) {
    const Finished refused = run_to_end({program_path("pool-scheduler"), "--key", key, "--store", store,
                                         "--config", folder.write("pool.toml", text + "\n")});
    INFO(text << "\n" << refused.output);
    CHECK(refused.status != 0);
    CHECK(refused.output.find(said) != std::string::npos);
    CHECK_FALSE(std::filesystem::exists(key));  // a rejected start creates no files
  }
}

TEST_CASE("a standby scheduler waits and names the leader") {
  SchedulerProcess scheduler;
  SimulatedPoolds poolds(scheduler.address(), 1, 1);
  REQUIRE(poolds.await());
  auto holder = std::make_unique<LeaseClient>(connect(scheduler.address()), request_call(1, 1000));
  const auto granted = holder->granted();
  REQUIRE(granted);
  const std::string port_file = scheduler.folder().path() / "second";
  Process second(
      {program_path("pool-scheduler"), "--listen", "127.0.0.1:0", "--port-file", port_file, "--key",
       scheduler.key_file(), "--store", "sqlite:" + (scheduler.folder().path() / "pool.db").string()},
      {});
  REQUIRE(eventually([&] { return std::filesystem::exists(port_file); }));
  int port = 0;
  std::ifstream(port_file) >> port;
  const auto channel = connect("127.0.0.1:" + std::to_string(port));
  CHECK(eventually([&] {
    LeaseClient refused(channel, request_call(1, 1));
    return refused.status().error_code() == grpc::StatusCode::UNAVAILABLE &&
           refused.leader() == scheduler.address();
  }));
  scheduler.kill();
  REQUIRE(second.await_output(" leads "));
  LeaseClient back(channel, resume_call(*granted));
  CHECK(back.granted());
  second.signal(SIGTERM);
  CHECK(second.wait() == 0);
}

TEST_CASE("metrics, health and the audit") {
  SchedulerProcess scheduler({"--metrics", "127.0.0.1:0"});
  SimulatedPoolds poolds(scheduler.address(), 2, 2);
  REQUIRE(poolds.await());
  LeaseClient holder(connect(scheduler.address()), request_call(1, 500));
  REQUIRE(holder.granted());
  REQUIRE(scheduler.await_log("url=http"));
  const uint16_t port = metrics_port(scheduler.log());
  const std::string page = http_get(port, "/metrics");
  for (const char* line :
       {"gpupool_pool_leader 1", "gpupool_pool_granted_total 1", "gpupool_pool_gpus_capacity 4",
        "gpupool_pool_gpus_leased 0.5", "gpupool_pool_nodes{condition=\"open\"} 2",
        "gpupool_pool_tenant_leases{tenant=\"default\"} 1"}) {
    INFO(page);
    CHECK(page.find(std::string("\n") + line + "\n") != std::string::npos);
  }
  CHECK(http_get(port, "/").find("<html") != std::string::npos);
  CHECK(http_get(port, "/pool.json").find("\"compute_milli_leased\":500") != std::string::npos);
  CHECK(http_get(port, "/readyz").find("200 OK") != std::string::npos);
  holder.release();
  CHECK(holder.ended());
  std::ifstream audit(scheduler.audit_file());
  const std::string lines{std::istreambuf_iterator<char>(audit), {}};
  CHECK(lines.find("\"event\":\"lease_granted\"") != std::string::npos);
  CHECK(lines.find("\"event\":\"lease_ending\"") != std::string::npos);
}
