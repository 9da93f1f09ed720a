// Tests monitoring clients (protocol/control/monitor.proto) over real connections.
#include <sstream>

#include "protocol/control/hello_exchange.h"
#include "protocol/control/monitor_codec.h"
#include "tests/server/fake_device_library.h"
#include "tests/support/catch.h"
#include "tests/support/certificates.h"
#include "tests/support/poold_process.h"
#include "tests/support/raw_client.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

hello::Hello watcher(const std::string& token = "", const std::string& pid_space = "here") {
  hello::Hello hello = test_hello();
  hello.token = token;
  hello.monitor = true;
  hello.pid_space = pid_space;
  return hello;
}

monitor::State ask(transport::Connection& connection) {
  const auto deadline = transport::Clock::now() + std::chrono::seconds(20);
  wire::Preamble preamble;
  const iovec question[] = {{&preamble, sizeof preamble}};
  REQUIRE(transport::send_all(connection, question, deadline));
  REQUIRE(transport::receive_exact(connection, std::as_writable_bytes(std::span(&preamble, 1)), deadline));
  std::string body(preamble.length, '\0');
  REQUIRE(transport::receive_exact(connection, std::as_writable_bytes(std::span(body)), deadline));
  auto state = monitor::decode_state(body);
  REQUIRE(state);
  return *state;
}

std::string token_line(std::string& token) {
  std::istringstream lines(run_to_end({program_path("poold"), "--make-token"}, {}).output);
  std::string line;
  std::getline(lines, token);
  std::getline(lines, line);
  return line + "\n";
}

}  // namespace

TEST_CASE("a watcher gets the GPUs and uses no worker") {
  PooldProcess poold(kDevice, {"--max-sessions", "1"});
  RawClient session(poold.endpoint());
  session.open();
  RawClient client(poold.endpoint());
  const hello::HelloReply reply = client.open(watcher());
  CHECK(reply.worker_pid == 0);
  CHECK(reply.session_id.empty());
  CHECK(reply.bulk_token.empty());
  CHECK(reply.driver_version == 13000);
  REQUIRE(reply.devices.size() == 2);
  const hello::Device& device = reply.devices[1];
  CHECK(device.name == "Fake device 1");
  CHECK(device.uuid == std::string(16, 'b'));
  CHECK(device.total_bytes == 9ull << 30);
  CHECK(device.pci_bus_id == "0000:02:00.0");
  CHECK(device.attributes.size() == 10);
  const monitor::State state = ask(client.connection());
  REQUIRE(state.gpus.size() == 2);
  CHECK(state.gpus[1].total_bytes == 9ull << 30);
  CHECK(state.gpus[1].used_bytes == 0);
  CHECK(ask(client.connection()).taken_ns > state.taken_ns);
  CHECK(occurrences(poold.log(), "session_running") == 1);
}

TEST_CASE("a watcher sees its own tenant's quota and needs the tenant's token") {
  const TemporaryFolder folder;
  std::string a, b;
  const std::string config = "[[tenant]]\nname = \"a\"\n" + token_line(a) +
                             "[tenant.quota]\nmemory = \"1GiB\"\n" + "[[tenant]]\nname = \"b\"\n" +
                             token_line(b);
  PooldProcess poold(kDevice, {"--config", folder.write("poold.toml", config)});
  RawClient of_a(poold.endpoint()), of_b(poold.endpoint());
  CHECK(of_a.open(watcher(a)).devices[0].total_bytes == 1ull << 30);
  CHECK(of_b.open(watcher(b)).devices[0].total_bytes == 8ull << 30);
  CHECK(ask(of_a.connection()).gpus[0].free_bytes == 1ull << 30);
  for (const std::string& wrong : {std::string(), std::string(64, 'x')}) {
    RawClient nobody(poold.endpoint());
    nobody.send_hello(watcher(wrong));
    CHECK(nobody.receive_reply().status == hello::Status::denied);
    CHECK(nobody.await_end());
  }
}

TEST_CASE("a watcher over TLS is served by poold itself") {
  const Authority authority("authority");
  const auto files = authority.sign("server", "IP:127.0.0.1,DNS:localhost");
  PooldProcess poold(kDevice, {"--listen", "tls://127.0.0.1:0", "--tls-certificate", files.certificate,
                               "--tls-key", files.key});
  transport::Options options;
  options.tls = {.ca = authority.certificate(), .certificate = {}, .key = {}, .secret = {}};
  RawClient client({"tls", "127.0.0.1", poold.port()}, options);
  client.send_hello(watcher());  // no upgrade(), which would wait for a worker
  CHECK(client.receive_reply().devices.size() == 2);
  for (int i = 0; i < 10; ++i) CHECK(ask(client.connection()).gpus.size() == 2);
}

TEST_CASE("many watchers do not keep sessions out") {
  PooldProcess poold(kDevice);
  std::vector<std::unique_ptr<RawClient>> watchers;
  for (int i = 0; i < 100; ++i) {
    watchers.push_back(std::make_unique<RawClient>(poold.endpoint()));
    watchers.back()->open(watcher());
  }
  CHECK(watchers.front()->await_end());
  CHECK(ask(watchers.back()->connection()).gpus.size() == 2);
  RawClient session(poold.endpoint());
  session.open();
  session.ping();
}
