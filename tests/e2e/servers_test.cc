// Missing, wrong and failing servers: the program gets CUDA error codes, stderr one line with the server and
// the reason, and nothing hangs.
#include <signal.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "protocol/transport/rdma_options.h"
#include "protocol/wire/frame.h"
#include "tests/e2e/pool.h"
#include "tests/support/catch.h"
#include "tests/support/proxy.h"
#include "tests/support/raw_client.h"
#include "tests/support/skip.h"
#include "tests/support/slow_link.h"

using namespace gpupool;
using namespace gpupool::testing;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kSoon{60'000};  // well above the timeouts after which a server is lost here

Environment timeouts(const std::string& milliseconds) {
  return {{"GPUPOOL_CONNECT_TIMEOUT_MS", milliseconds}, {"GPUPOOL_DEAD_PEER_TIMEOUT_MS", milliseconds}};
}
const Environment kImpatient = timeouts("700");  // for servers that never answer
const Environment kPatient =
    timeouts("600000");  // for servers that answer: no timeout hides a missing answer
const Environment kAttentive =
    timeouts("8000");  // for servers that stop answering: long enough for a busy machine
// Over rdma, only the timeout detects that a worker was killed.
const Environment kUsual = over_rdma() ? timeouts("5000") : Environment{};

Environment with(Environment environment, const Environment& more) {
  for (const auto& [name, value] : more) environment[name] = value;
  return environment;
}

// Accepts one client at a time and calls `serve` for it.
class FakeServer {
 public:
  explicit FakeServer(std::function<void(transport::Connection&)> serve) {
    auto listener = transport::listen({"tcp", "127.0.0.1", 0}, {});
    REQUIRE(listener);
    listener_ = std::move(*listener);
    thread_ = std::thread([this, serve] {
      while (auto client = listener_->accept(std::nullopt)) serve(**client);
    });
  }
  ~FakeServer() {
    listener_->close();
    thread_.join();
  }
  std::string url() const { return listener_->endpoint().text(); }

 private:
  std::unique_ptr<transport::Listener> listener_;
  std::thread thread_;
};

void send_text(transport::Connection& connection, std::string text) {
  const iovec part{text.data(), text.size()};
  (void)transport::send_all(connection, {&part, 1}, transport::Clock::now() + kSoon);
}

// Reads until the client closes the connection.
void read_all(transport::Connection& connection) {
  std::byte bytes[4096];
  while (const auto received = connection.receive_some(bytes)) {
    if (*received == 0 && !connection.wait(true, false, std::nullopt)) return;
  }
}

std::string hello_reply(const hello::HelloReply& reply, uint16_t version) {
  const std::string body = hello::encode(reply);
  const wire::Preamble preamble{.protocol_version = version, .length = static_cast<uint32_t>(body.size())};
  return std::string(RawClient::bytes_of(preamble)) + body;
}

void expect_no_device(const std::string& server, const std::string& reason,
                      const Environment& patience = kPatient) {
  const Finished app =
      run_patiently({driver_app(), "initialise"},
                    with(patience, {{"LD_LIBRARY_PATH", client_folder()}, {"GPUPOOL", server}}));
  INFO(app.output);
  CHECK(app.status == 0);
  CHECK(app.output.find(
            "cuInit CUDA_ERROR_NO_DEVICE, again CUDA_ERROR_NO_DEVICE, count CUDA_ERROR_NOT_INITIALIZED") !=
        std::string::npos);
  const auto lines = lines_with(app.output, "gpupool:");
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].find(server) != std::string::npos);
  CHECK(lines[0].find(reason) != std::string::npos);
}

// A busy program that exits with status 0 after it has lost its server and got the same error repeatedly.
class Victim {
 public:
  Victim(Pool& pool, const std::string& activity, const Environment& more = {})
      : activity_(activity),
        environment_(with(pool.through(kUsual), more)),
        app_({driver_app(), "until_it_fails", activity}, environment_) {
    INFO("while it does " << activity);
    REQUIRE(app_.await_output("working", kLongPatience));
    worker_ = pool.worker_of(app_);
  }
  pid_t worker() const { return worker_; }
  void expect_loss(const std::string& reason) {
    INFO("while it does " << activity_);
    const int status = app_.wait(kSoon);
    app_.signal(SIGKILL);
    app_.await_end_of_output();
    INFO(app_.output());
    CHECK(status == 0);
    CHECK(app_.output().find("gave CUDA_ERROR_DEVICE_UNAVAILABLE, then CUDA_ERROR_DEVICE_UNAVAILABLE "
                             "CUDA_ERROR_DEVICE_UNAVAILABLE CUDA_SUCCESS") != std::string::npos);
    const auto lines = lines_with(app_.output(), "now fail");
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].find(environment_.at("GPUPOOL")) != std::string::npos);
    CHECK(lines[0].find(reason) != std::string::npos);
  }

 private:
  const std::string activity_;
  const Environment environment_;
  Process app_;
  pid_t worker_ = -1;
};

// Starts a busy program, calls `happens` and expects the program to lose its server.
void expect_loss(Pool& pool, const std::string& activity, const std::function<void(pid_t worker)>& happens,
                 const std::string& reason, const Environment& more = {}) {
  Victim victim(pool, activity, more);
  happens(victim.worker());
  victim.expect_loss(reason);
}

}  // namespace

TEST_CASE("no server is named") {
  for (const char* server : {"", "localhost:9700", "tcp://127.0.0.1", "carrier-pigeon://127.0.0.1:1"}) {
    const Finished app =
        run_to_end({driver_app(), "initialise"}, {{"LD_LIBRARY_PATH", client_folder()}, {"GPUPOOL", server}});
    INFO(app.output);
    CHECK(app.status == 0);
    CHECK(app.output.find("cuInit CUDA_ERROR_NO_DEVICE") != std::string::npos);
    const auto lines = lines_with(app.output, "gpupool:");
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].find(*server ? server : "GPUPOOL=tcp://HOST:PORT") != std::string::npos);
  }
}

TEST_CASE("a port where no program listens gives no device") {
  uint16_t port = 0;
  {
    auto listener = transport::listen({"tcp", "127.0.0.1", 0}, {});
    REQUIRE(listener);
    port = (*listener)->endpoint().port;
  }
  expect_no_device("tcp://127.0.0.1:" + std::to_string(port), "connection refused");
}

TEST_CASE("rdma that is asked for on a machine without a device fails and says so") {
  if (transport::has_rdma_device()) return report_skip("this machine has an RDMA device");
  Pool pool;
  const std::string tcp = pool.poold().url();
  for (const auto& [server, wish] : {std::pair{tcp, "rdma"}, std::pair{"rdma" + tcp.substr(3), "auto"}}) {
    const Finished app = run_to_end({driver_app(), "initialise"},
                                    pool.through({{"GPUPOOL", server}, {"GPUPOOL_TRANSPORT", wish}}));
    INFO(app.output);
    CHECK(app.output.find("cuInit CUDA_ERROR_NO_DEVICE") != std::string::npos);
    const auto lines = lines_with(app.output, "gpupool:");
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].find("cannot use the server " + server) != std::string::npos);
    CHECK(lines[0].find("needs an RDMA device, and this machine has none") != std::string::npos);
  }
}

TEST_CASE("the log tells what carries the session and why it is not rdma") {
  if (transport::has_rdma_device()) return report_skip("this machine has an RDMA device");
  Pool pool;
  const auto carrier = [&](const Environment& more) {
    const Finished app =
        run_to_end({driver_app(), "initialise"}, pool.through(with({{"GPUPOOL_LOG", "debug"}}, more)));
    CHECK(app.output.find("cuInit CUDA_SUCCESS") != std::string::npos);
    const auto lines = lines_with(app.output, "gpupool: session with " + pool.poold().url());
    REQUIRE(lines.size() == 1);
    const size_t begin = lines[0].find(" over ") + 6;
    return lines[0].substr(begin, lines[0].find(": worker") - begin);
  };
  CHECK(carrier({{"GPUPOOL_TRANSPORT", "auto"}, {"GPUPOOL_SHM", "0"}}) ==
        "tcp (no rdma: this machine has no RDMA device)");
  CHECK(carrier({{"GPUPOOL_TRANSPORT", "auto"}, {"GPUPOOL_SHM", ""}}) == "shared memory");
  CHECK(carrier({{"GPUPOOL_TRANSPORT", "tcp"}}) == "tcp");
}

TEST_CASE("a wrong setting is named and counts as not set") {
  Pool pool;
  const Finished app =
      run_to_end({driver_app(), "initialise"}, pool.through({{"GPUPOOL_TRANSPORT", "pigeon"},
                                                             {"GPUPOOL_RDMA_MTU", "1500"},
                                                             {"GPUPOOL_RDMA_SERVICE_LEVEL", "16"},
                                                             {"GPUPOOL_BULK_CONNECTIONS", "many"}}));
  INFO(app.output);
  CHECK(app.output.find("cuInit CUDA_SUCCESS") != std::string::npos);
  for (const char* said : {"GPUPOOL_TRANSPORT=pigeon: ignored, must be auto, tcp or rdma",
                           "GPUPOOL_BULK_CONNECTIONS=many: ignored, must be a number",
                           "GPUPOOL_RDMA_MTU=1500: ignored, must be 256, 512, 1024, 2048 or 4096",
                           "GPUPOOL_RDMA_SERVICE_LEVEL=16: ignored, must be a number from 0 to 15"}) {
    CHECK(app.output.find(said) != std::string::npos);
  }
}

TEST_CASE("an empty token file is named") {
  Pool pool;
  const TemporaryFolder folder;
  for (const char* const content : {"", "\n", "  \n\n"}) {
    const Finished app = run_to_end({driver_app(), "initialise"},
                                    pool.through({{"GPUPOOL_TOKEN_FILE", folder.write("token", content)}}));
    CHECK(app.output.find("gpupool: GPUPOOL_TOKEN_FILE=" + folder.path().string() +
                          "/token: no token in its first line") != std::string::npos);
  }
}

TEST_CASE("a server other than poold gives no device") {
  FakeServer web([](transport::Connection& client) {
    send_text(client, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    read_all(client);
  });
  expect_no_device(web.url(), "not poold; check the host and the port");
  FakeServer grpc([](transport::Connection& client) {
    send_text(client,
              std::string("\0\0\x0c\x04\0\0\0\0\0\0\x03\0\0\0\x64\0\x04\0\x3f\xff\xff", 21));  // SETTINGS
    read_all(client);
  });
  expect_no_device(grpc.url(), "speaks HTTP/2, as pool-scheduler does; use pool://HOST:PORT");
  FakeServer mute([](transport::Connection& client) { read_all(client); });
  expect_no_device(mute.url(), "no answer to the hello", kImpatient);
  FakeServer closing([](transport::Connection&) {});
  expect_no_device(closing.url(), "check that poold listens there, and whether it requires TLS");
}

TEST_CASE("a server of another protocol version") {
  hello::HelloReply reply;
  reply.status = hello::Status::wrong_version;
  reply.protocol_version = 99;
  reply.reason = "this poold speaks protocol version 99, the client 1";
  FakeServer refusing([&](transport::Connection& client) {
    send_text(client, hello_reply(reply, 99));
    read_all(client);
  });
  expect_no_device(refusing.url(), "protocol version 99");
  hello::HelloReply welcome;
  welcome.status = hello::Status::ok;
  FakeServer welcoming([&](transport::Connection& client) {
    send_text(client, hello_reply(welcome, 2));
    read_all(client);
  });
  expect_no_device(welcoming.url(), "protocol version 2");
}

TEST_CASE("a client of another protocol version") {
  Pool pool;
  RawClient client(pool.poold().endpoint());
  client.send_preamble({.protocol_version = 7, .length = 0});
  const hello::HelloReply reply = client.receive_reply();
  CHECK(reply.status == hello::Status::wrong_version);
  CHECK(reply.reason.find('7') != std::string::npos);
  CHECK(client.await_end());
}

TEST_CASE("the answer to the hello is cut short") {
  Pool pool;
  for (const uint64_t bytes : {1, 11, 12, 13, 40, 200}) {
    Proxy proxy(pool.poold().endpoint(), bytes);
    expect_no_device(proxy.url(), bytes < 12 ? "no answer to the hello" : "ended during the server's hello");
  }
}

TEST_CASE("the answer to the hello is nonsense") {
  wire::Preamble preamble{.length = 64};
  const std::string head(RawClient::bytes_of(preamble));
  FakeServer noise([&](transport::Connection& client) {
    send_text(client, head + std::string(64, '\xff'));
    read_all(client);
  });
  expect_no_device(noise.url(), "");
  preamble.length = 0xffffffff;
  const std::string endless(RawClient::bytes_of(preamble));
  FakeServer boastful([&](transport::Connection& client) {
    send_text(client, endless);
    read_all(client);
  });
  expect_no_device(boastful.url(), "not poold");
}

TEST_CASE("the worker dies at work") {
  Pool pool;
  for (const char* activity : {"wait", "read", "write", "launch", "kernel"}) {
    expect_loss(
        pool, activity, [](pid_t worker) { REQUIRE(::kill(worker, SIGKILL) == 0); }, "");
  }
  CHECK(run_to_end({driver_app(), "short_life"}, pool.through()).status == 0);
}

TEST_CASE("poold dies at work") {
  Pool pools[2];
  Victim victims[]{{pools[0], "wait"}, {pools[1], "read"}};  // in parallel, since both try to reconnect
  for (Pool& pool : pools) pool.poold().process().signal(SIGKILL);
  for (Victim& victim : victims) {
    CHECK(await_gone(victim.worker()));
    victim.expect_loss("");
  }
}

TEST_CASE("a bulk connection is cut in the middle of a copy") {
  Pool pool({}, {"--resume-timeout", "0"});
  for (const char* activity : {"read", "write"}) {
    SlowLink link(pool.poold().endpoint(), {});
    expect_loss(pool, activity,
                [&](pid_t worker) {
                  link.cut(1);  // the first bulk connection
                  CHECK(await_gone(worker));
                },
                "bulk connection", {{"GPUPOOL", link.url()}, {"GPUPOOL_BULK_CONNECTIONS", "2"}});
  }
  CHECK(run_to_end({driver_app(), "short_life"}, pool.through()).status == 0);
}

TEST_CASE("a stopped worker is noticed") {
  Pool pool(Environment{{"SOFTGPU_MEMORY", "512MiB"}}, {"--resume-timeout", "0"});
  std::vector<std::unique_ptr<Victim>> victims;  // in parallel, since each takes as long as its timeout
  for (const char* activity : {"wait", "read", "write", "launch", "kernel"}) {
    victims.push_back(std::make_unique<Victim>(pool, activity, kAttentive));
  }
  for (const auto& victim : victims) REQUIRE(::kill(victim->worker(), SIGSTOP) == 0);
  for (const auto& victim : victims) victim->expect_loss("");
  for (const auto& victim : victims) ::kill(victim->worker(), SIGKILL);
  for (const auto& victim : victims) CHECK(await_gone(victim->worker()));
}

TEST_CASE("the connection is cut in the middle of a message") {
  Pool pool({}, {"--resume-timeout", "0"});
  uint64_t hello_bytes = 0;
  {
    Proxy proxy(pool.poold().endpoint());
    CHECK(run_to_end({driver_app(), "initialise"}, pool.through({{"GPUPOOL", proxy.url()}})).status == 0);
    hello_bytes = proxy.from_server();
  }
  // Cuts in the first reply's header, in a body, and in the data of a copy.
  for (const uint64_t more : {1, 31, 33, 100'000, 1'000'003, 5'000'001}) {
    Proxy proxy(pool.poold().endpoint(), hello_bytes + more);
    const Finished app = run_to_end({driver_app(), "until_it_fails", "read"},
                                    with(pool.through(kUsual), {{"GPUPOOL", proxy.url()}}));
    INFO("cut after " << more << " bytes: " << app.output);
    const auto lines = lines_with(app.output, "gpupool:");
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].find(proxy.url()) != std::string::npos);
    CHECK(app.output.find("CUDA_ERROR_DEVICE_UNAVAILABLE") != std::string::npos);
  }
}

TEST_CASE("pinned memory of a program on the server's host is shared with its worker") {
  Pool pool;
  const auto pinned = [&](const std::string& transport) {
    const Finished app =
        run_to_end({driver_app(), "shared_pinned_memory"}, {{"LD_LIBRARY_PATH", client_folder()},
                                                            {"GPUPOOL", pool.poold().url()},
                                                            {"GPUPOOL_TRANSPORT", transport}});
    CHECK(app.status == 0);
    return app.output;
  };
  CHECK(pinned("auto").starts_with("pinned memory is shared\n"));
  CHECK(pinned("tcp").starts_with("pinned memory is private\n"));
}

TEST_CASE("a program on the server's host uses shared memory unless told otherwise") {
  TemporaryFolder folder;
  const std::string socket = "shm://" + (folder.path() / "pool.sock").string();
  Pool pool({}, {"--listen", "tcp://127.0.0.1:0", "--listen", socket});
  const auto transport_of = [&](const Environment& environment) {
    Environment all{{"LD_LIBRARY_PATH", client_folder()}, {"GPUPOOL", pool.poold().url()}};
    all = with(all, environment);
    const size_t before = lines_with(pool.poold().log(), "session_started").size();
    const Finished app = run_to_end({driver_app(), "short_life"}, all);
    INFO(app.output);
    CHECK(app.status == 0);
    REQUIRE(pool.poold().await_log("session_started", before + 1));
    const std::string line = lines_with(pool.poold().log(), "session_started").back();
    const size_t begin = line.find("transport=");
    return line.substr(begin, line.find(' ', begin) - begin);
  };
  CHECK(transport_of({}) == "transport=shm");
  CHECK(transport_of({{"GPUPOOL_TRANSPORT", "tcp"}}) == "transport=tcp");
  CHECK(transport_of({{"GPUPOOL_SHM", "0"}}) ==
        (transport::has_rdma_device() ? "transport=rdma" : "transport=tcp"));
  CHECK(transport_of({{"GPUPOOL", "tcp://localhost:" + std::to_string(pool.poold().port())}}) ==
        "transport=shm");
  CHECK(transport_of({{"GPUPOOL", socket}, {"GPUPOOL_SHM", "0"}}) == "transport=shm");
  Proxy proxy(pool.poold().endpoint());
  CHECK(transport_of({{"GPUPOOL", proxy.url()}, {"GPUPOOL_TRANSPORT", "tcp"}}) == "transport=tcp");
  expect_no_device("shm://" + (folder.path() / "nobody.sock").string(), "No such file");
}

TEST_CASE("more clients than poold takes") {
  Pool pool({}, {"--max-sessions", "1"});
  RawClient first(pool.poold().endpoint());
  first.open();
  expect_no_device(pool.poold().url(), "refused");
}
