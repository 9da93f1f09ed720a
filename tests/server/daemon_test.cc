// Tests poold's options, configuration file, start-up errors and exit.
#include <arpa/inet.h>
#include <signal.h>

#include <fstream>
#include <sstream>

#include "protocol/transport/shm/address.h"
#include "tests/server/fake_device_library.h"
#include "tests/support/catch.h"
#include "tests/support/has.h"
#include "tests/support/poold_process.h"
#include "tests/support/raw_client.h"
#include "tests/support/skip.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

Finished poold(std::vector<std::string> options, const Environment& environment = {}) {
  options.insert(options.begin(), program_path("poold"));
  return run_to_end(options, environment);
}

}  // namespace

TEST_CASE("poold prints its version and its help") {
  const Finished version = poold({"--version"});
  CHECK(version.status == 0);
  CHECK(version.output.starts_with("poold "));
  const Finished help = poold({"--help"});
  CHECK(help.status == 0);
  for (const char* option : {"--listen",
                             "--no-shm",
                             "--device",
                             "--port-file",
                             "--idle-workers",
                             "--max-sessions",
                             "--image-cache-mib",
                             "--hello-timeout",
                             "--connections-per-second",
                             "--dead-peer-timeout",
                             "--turn-limit",
                             "--config",
                             "--log-level",
                             "--log-format",
                             "--insecure",
                             "--admin-socket",
                             "--metrics",
                             "--rdma ",
                             "--rdma-device",
                             "--rdma-port",
                             "--rdma-gid-index",
                             "--rdma-mtu",
                             "--rdma-traffic-class",
                             "--rdma-service-level",
                             "--rdma-partition-key",
                             "--rdma-timeout",
                             "--rdma-setup",
                             "SOFTGPU_INSTANCE"}) {
    CHECK(has(help.output, option));
  }
}

TEST_CASE("a wrong option ends poold with status 2 and is named") {
  struct Case {
    std::vector<std::string> options;
    const char* named;
  };
  const auto wrong = GENERATE(
      Case{{"--nonsense"}, "--nonsense"}, Case{{"extra"}, "extra"},
      Case{{"--idle-workers", "0"}, "--idle-workers"}, Case{{"--idle-workers", "x"}, "--idle-workers"},
      Case{{"--max-sessions", "0"}, "--max-sessions"},
      Case{{"--connections-per-second", "0"}, "--connections-per-second"},
      Case{{"--image-cache-mib", "-1"}, "--image-cache-mib"},
      Case{{"--hello-timeout", "0"}, "--hello-timeout"},
      Case{{"--dead-peer-timeout", "-1"}, "--dead-peer-timeout"}, Case{{"--turn-limit", "0"}, "--turn-limit"},
      Case{{"--log-level", "loud"}, "loud"}, Case{{"--log-format", "xml"}, "xml"},
      Case{{"--listen", "127.0.0.1:1"}, "127.0.0.1:1"},
      Case{{"--listen", "shm://pool.sock"}, "shm://pool.sock"},
      Case{{"--listen", "shm://@x", "--port-file", "/tmp/port"}, "--port-file"},
      Case{{"--rdma", "maybe"}, "--rdma"},
      Case{{"--rdma-mtu", "1500"}, "--rdma-mtu: '1500' is not 256, 512, 1024, 2048 or 4096"},
      Case{{"--rdma-port", "0"}, "--rdma-port"},
      Case{{"--rdma-partition-key", "0x10000"}, "--rdma-partition-key"},
      Case{{"--rdma", "no", "--listen", "rdma://127.0.0.1:0"}, "--rdma no"},
      Case{{"--config", "/nowhere/poold.toml"}, "/nowhere/poold.toml"});
  const Finished finished = poold(wrong.options);
  CHECK(finished.status == 2);
  CHECK(has(finished.output, wrong.named));
  CHECK(has(finished.output, "poold: "));
}

TEST_CASE("a device that cannot be used ends poold with status 1 and says why") {
  struct Case {
    std::string device;
    const char* mode;
    const char* said;
  };
  const auto wrong = GENERATE(Case{"quantum", "", "unknown device 'quantum'"},
                              Case{"/nowhere/libcuda.so.1", "", "/nowhere/libcuda.so.1"},
                              Case{FAKE_DEVICE_LIBRARY, "init", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)"},
                              Case{FAKE_DEVICE_LIBRARY, "none", "no devices"},
                              Case{FAKE_DEVICE_LIBRARY, "crash", "killed by signal 6"},
                              Case{FAKE_CLIENT_LIBRARY, "", "gpupool's client library"},
                              Case{RAW_TEXT_FILE, "", "cannot be used"});
  const Finished finished =
      poold({"--listen", "tcp://127.0.0.1:0", "--device", wrong.device}, {{"FAKE_DEVICE", wrong.mode}});
  CHECK(finished.status == 1);
  INFO(finished.output);
  CHECK(has(finished.output, wrong.said));
}

TEST_CASE("poold listens beyond loopback only when told to") {
  const auto address = GENERATE("tcp://0.0.0.0:0", "tcp://[::]:0");
  const Finished refused = poold({"--listen", address, "--device", kDevice});
  CHECK(refused.status == 1);
  if (has(refused.output, "not supported") || has(refused.output, "Cannot assign"))
    return report_skip("this machine has no IPv6");
  CHECK(has(refused.output, address));
  CHECK(has(refused.output, "--insecure"));
  CHECK(has(refused.output, "authentication"));
  PooldProcess allowed(kDevice, {"--listen", address, "--insecure"});
  CHECK(RawClient(allowed.endpoint()).open().devices.size() == 2);
  CHECK(allowed.stop() == 0);
}

TEST_CASE("poold warns of metrics that other machines can read") {
  const PooldProcess local(kDevice, {"--metrics", "127.0.0.1:0"});
  CHECK(has(local.log(), " metrics url="));
  CHECK_FALSE(has(local.log(), "metrics_open"));
  const PooldProcess open(kDevice, {"--metrics", "0.0.0.0:0"});
  CHECK(has(open.log(), " warning poold[" + std::to_string(open.pid()) + "] metrics_open "));
}

TEST_CASE("a port that is taken and a port file that cannot be written end poold with status 1") {
  PooldProcess first(kDevice);
  const Finished second = poold({"--listen", first.url(), "--device", kDevice});
  CHECK(second.status == 1);
  CHECK(has(second.output, first.url()));
  const Finished third =
      poold({"--listen", "tcp://127.0.0.1:0", "--device", kDevice, "--port-file", "/nowhere/port"});
  CHECK(third.status == 1);
  CHECK(has(third.output, "/nowhere/port"));
}

TEST_CASE("the port file holds the port and is removed at exit") {
  PooldProcess poold(kDevice);
  std::ifstream file(poold.port_file());
  std::string line;
  std::getline(file, line);
  CHECK(line == std::to_string(poold.port()));
  CHECK(poold.await_log("listening"));
  CHECK(has(poold.log(), "address=" + poold.url()));
  CHECK(poold.stop() == 0);
  CHECK_FALSE(std::filesystem::exists(poold.port_file()));
}

TEST_CASE("the configuration file has the options' keys, and the command line wins") {
  TemporaryFolder folder;
  const std::string file = folder.write(
      "poold.toml",
      "# comment\ndevice = \"/nowhere\"\nidle-workers = 3\nmax-sessions = 1\n"
      "hello-timeout = 2.5\nturn-limit = 0.5\ndead-peer-timeout = 9\nlog-format = \"json\"\n"
      "image-cache-mib = 12\nlog-level = \"debug\"\ninsecure = false\nport-file = \"/nowhere/port\"\n"
      "listen = \"tcp://192.0.2.1:1\"\n");
  PooldProcess poold(kDevice, {"--config", file});
  CHECK(eventually([&] { return poold.workers().size() == 3; }));
  CHECK(poold.await_log("\"event\":\"listening\""));
  CHECK(has(poold.log(), "\"max_sessions\":1}"));
  CHECK(poold.log().starts_with("{\"time\":"));
  RawClient first(poold.endpoint());
  first.open();
  RawClient second(poold.endpoint());
  second.send_hello();
  CHECK(second.receive_reply().status == hello::Status::busy);
}

TEST_CASE("poold listens on several addresses, and the limit of sessions holds for all of them") {
  TemporaryFolder folder;
  const transport::Endpoint socket{"shm", folder.path() / "pool.sock", 0};
  const bool by_file = GENERATE(false, true);
  std::vector<std::string> options{"--max-sessions", "2"};
  if (by_file) {
    options.insert(
        options.end(),
        {"--config", folder.write("poold.toml", "no-shm = true\nlisten = [\"tcp://127.0.0.1:0\", \"" +
                                                    socket.text() + "\"]\n")});
  } else {
    options.insert(options.end(), {"--listen", "tcp://127.0.0.1:0", "--listen", socket.text(), "--no-shm"});
  }
  // With --port-file, only one of the listening addresses may have a port.
  std::vector<std::string> words{program_path("poold"), "--device", kDevice, "--port-file",
                                 folder.path() / "port"};
  words.insert(words.end(), options.begin(), options.end());
  Process poold(words, {});
  REQUIRE(poold.await_output("listening"));
  CHECK(has(poold.output(), "," + socket.text() + " "));
  uint16_t port = 0;
  std::ifstream(folder.path() / "port") >> port;
  RawClient first({"tcp", "127.0.0.1", port});
  first.open();
  RawClient second(socket);
  second.open();
  second.ping();
  CHECK(poold.await_output("transport=tcp"));
  CHECK(poold.await_output("transport=shm"));
  RawClient third(socket);
  third.send_hello();
  CHECK(third.receive_reply().status == hello::Status::busy);
  CHECK_FALSE(transport::connect(transport::shm::shm_endpoint_of_tcp("127.0.0.1", port), {}));
  poold.signal(SIGTERM);
  CHECK(poold.wait() == 0);
  CHECK_FALSE(std::filesystem::exists(socket.host));
  CHECK(second.await_end());
}

TEST_CASE("shared memory is offered beside each TCP port") {
  PooldProcess poold(kDevice);
  const transport::Endpoint beside = transport::shm::shm_endpoint_of_tcp("127.0.0.1", poold.port());
  RawClient client(beside);
  client.open();
  client.ping();
  CHECK(poold.await_log("transport=shm"));
  RawClient silent(beside);
  silent.send("nonsense that is long enough");
  CHECK(silent.await_end());
  CHECK(poold.await_log("client_refused"));
}

TEST_CASE("RDMA settings reach the workers and the command line overrides the file") {
  TemporaryFolder folder;
  const std::string file =
      folder.write("poold.toml", "[rdma]\nmtu = 1024\ndevice = \"mlx5_7\"\npartition-key = \"0x8001\"\n");
  PooldProcess poold(kDevice,
                     {"--config", file, "--rdma-mtu", "2048", "--rdma-gid-index", "3", "--idle-workers", "1",
                      "--no-sandbox"},
                     {{"GPUPOOL_RDMA_GID_INDEX", "5"}, {"GPUPOOL_RDMA_TIMEOUT", "long"}});
  REQUIRE(poold.workers().size() == 1);
  const std::string process =
      "/proc/" + std::to_string(poold.workers()[0]);  // a sandbox would hide this worker's environment
  std::stringstream environment, words;
  environment << std::ifstream(process + "/environ").rdbuf();
  words << std::ifstream(process + "/cmdline").rdbuf();
  for (const std::string variable : {"GPUPOOL_RDMA_MTU=2048", "GPUPOOL_RDMA_DEVICE=mlx5_7",
                                     "GPUPOOL_RDMA_PARTITION_KEY=0x8001", "GPUPOOL_RDMA_GID_INDEX=3"}) {
    INFO(variable);
    CHECK(has('\0' + environment.str(), '\0' + variable + '\0'));
  }
  CHECK(has(words.str(), std::string("--rdma\0yes\0", 11)));
  CHECK(poold.await_log("GPUPOOL_RDMA_TIMEOUT=long: ignored, must be an exponent from 1 to 22"));
}

TEST_CASE("rdma can be switched off") {
  TemporaryFolder folder;
  const std::string file = folder.write("poold.toml", "[rdma]\nenabled = false\n");
  PooldProcess poold(kDevice, {"--config", file, "--idle-workers", "1"});
  CHECK(poold.await_log("rdma=off"));
  std::stringstream words;
  words << std::ifstream("/proc/" + std::to_string(poold.workers().at(0)) + "/cmdline").rdbuf();
  CHECK(has(words.str(), std::string("--rdma\0no\0", 10)));
}

TEST_CASE("an error in the configuration file is named") {
  struct Case {
    const char* content;
    const char* said;
  };
  const auto wrong = GENERATE(
      Case{"idle-wokers = 3\n", "idle-wokers: unknown key"}, Case{"idle-workers = \"3\"\n", "idle-workers"},
      Case{"idle-workers = 0\n", "from 1"}, Case{"max-sessions = 2.5\n", "max-sessions"},
      Case{"connections-per-second = 0\n", "from 1"}, Case{"hello-timeout = \"5s\"\n", "hello-timeout"},
      Case{"hello-timeout = 0\n", "hello-timeout"}, Case{"dead-peer-timeout = nan\n", "dead-peer-timeout"},
      Case{"listen = \"here\"\n", "'here'"}, Case{"listen = []\n", "listen"},
      Case{"listen = [\"tcp://127.0.0.1:0\", 3]\n", "listen"},
      Case{"listen = [\"tcp://127.0.0.1:0\", \"here\"]\n", "'here'"}, Case{"no-shm = 1\n", "no-shm"},
      Case{"image-cache-mib = -1\n", "from 0"}, Case{"log-level = 3\n", "log-level"},
      Case{"insecure = 1\n", "insecure"}, Case{"rdma = false\n", "rdma: must be a table"},
      Case{"[rdma]\nenabled = 1\n", "rdma: enabled: must be true or false"},
      Case{"[rdma]\nmtu = 1500\n", "rdma: mtu: '1500' is not"},
      Case{"[rdma]\ndevise = \"x\"\n", "rdma: devise: unknown key"},
      Case{"[rdma]\ntimeout = 1.5\n", "rdma: timeout: must be a string"}, Case{"device = [1]\n", "device"},
      Case{"\ndevice = = 3\n", "line 2"}, Case{"[server]\nidle-workers = 2\n", "server"});
  TemporaryFolder folder;
  const std::string file = folder.write("poold.toml", wrong.content);
  const Finished finished = poold({"--config", file});
  CHECK(finished.status == 2);
  INFO(finished.output);
  CHECK(has(finished.output, file));
  CHECK(has(finished.output, wrong.said));
}

TEST_CASE("SIGTERM and SIGINT end poold and all of its child processes") {
  const auto signal = GENERATE(SIGTERM, SIGINT);
  PooldProcess poold(kDevice);
  RawClient client(poold.endpoint());
  client.open();
  RawClient silent(poold.endpoint());
  CHECK(eventually([&] { return poold.workers().size() >= 2; }));  // the session's and an idle one
  const auto workers = poold.workers();
  poold.process().signal(signal);
  CHECK(poold.process().wait() == 0);
  CHECK(poold.process().await_end_of_output());
  for (const pid_t worker : workers) CHECK(await_gone(worker));
  const auto end = client.await_end();
  REQUIRE(end);
  CHECK(has(*end, "shutting down"));
  CHECK(silent.await_end());
  CHECK(has(poold.log(), "reason=\"poold is shutting down\""));
  CHECK_FALSE(transport::connect(poold.endpoint(), {}));
  CHECK(has(poold.log(), "stopped status=0"));
}

TEST_CASE("workers exit when poold is killed") {
  PooldProcess poold(kDevice);
  RawClient client(poold.endpoint());
  client.open();
  CHECK(eventually([&] { return poold.workers().size() >= 3; }));
  const auto workers = poold.workers();
  poold.process().signal(SIGKILL);
  CHECK(poold.process().wait() == 128 + SIGKILL);
  for (const pid_t worker : workers) CHECK(await_gone(worker));
  CHECK(client.await_end());
}

TEST_CASE("poold-worker started by hand prints an explanation") {
  const Finished finished = run_to_end({program_path("poold-worker")});
  CHECK(finished.status == 64);
  CHECK(has(finished.output, "poold"));
}
