// Tests each call of the admin service against a running poold.
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>

#include "tests/server/fake_device_library.h"
#include "tests/server/poold/admin/admin_client.h"
#include "tests/support/catch.h"
#include "tests/support/has.h"
#include "tests/support/http_get.h"
#include "tests/support/poold_process.h"
#include "tests/support/raw_client.h"

using namespace gpupool;
using namespace gpupool::testing;
using grpc::StatusCode;
using std::chrono::milliseconds;

namespace {

hello::Hello hello_of(const std::string& program) {
  hello::Hello hello = test_hello();
  hello.program = program;
  hello.host = "laptop";
  hello.pid = 4321;
  return hello;
}

}  // namespace

TEST_CASE("a snapshot without sessions shows poold and its GPUs and tenant") {
  PooldProcess poold(kDevice, {"--max-sessions", "7"});
  AdminClient client(poold);
  const admin::Poold health = client.health();
  CHECK(health.ready());
  CHECK(health.pid() == poold.pid());
  CHECK(health.max_sessions() == 7);
  CHECK(health.sessions() == 0);
  CHECK(health.image_cache().capacity_bytes() == uint64_t{1024} << 20);
  CHECK_FALSE(health.version().empty());

  const auto gpus = client.get(&admin::Admin::Stub::ListGpus, admin::ListGpusRequest()).gpus();
  REQUIRE(gpus.size() == 2);
  CHECK(gpus[1].index() == 1);
  CHECK_FALSE(gpus[0].name().empty());
  CHECK(gpus[0].uuid().size() == 40);
  CHECK(gpus[0].memory_total_bytes() != 0);
  CHECK(gpus[0].memory_used_bytes() == 0);
  CHECK(gpus[0].compute_sold_milli() == 1000);

  CHECK(client.sessions().empty());
  const auto tenants = client.tenants();
  REQUIRE(tenants.size() == 1);
  CHECK(tenants[0].name() == "default");
  CHECK(tenants[0].configured());
  CHECK(tenants[0].quota().has_streams());
  CHECK(tenants[0].memory_used_bytes().size() == 2);
}

TEST_CASE("a session is listed while it runs and its usage stays with its tenant") {
  PooldProcess poold(kDevice);
  AdminClient client(poold);
  {
    RawClient program(poold.endpoint());
    program.open(hello_of("\x1b[2Jtrain\xff.py"));
    for (int i = 0; i < 5; ++i) program.ping();
    const auto sessions = client.sessions();
    REQUIRE(sessions.size() == 1);
    CHECK(sessions[0].number() == 1);
    CHECK(sessions[0].tenant() == "default");
    CHECK(sessions[0].program() == "?[2Jtrain?.py");
    CHECK(sessions[0].host() == "laptop");
    CHECK(sessions[0].pid() == 4321);
    CHECK(sessions[0].transport() == "tcp");
    CHECK(has(sessions[0].address(), "127.0.0.1:"));
    CHECK(sessions[0].calls() == 5);
    CHECK(sessions[0].errors() == 0);
    CHECK(sessions[0].bytes_from_client() >= 5 * sizeof(wire::CommandHeader));
    // The counter is updated after the send, so perhaps after the client has received the bytes.
    CHECK(eventually(
        [&] { return client.sessions()[0].bytes_to_client() >= 5 * sizeof(wire::MessageHeader); }));
    CHECK_FALSE(sessions[0].ending());
    const auto workers = poold.workers();
    CHECK(std::find(workers.begin(), workers.end(), sessions[0].worker_pid()) != workers.end());
    const auto now =
        std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
    CHECK(std::abs(now - sessions[0].started_ms()) < 60'000);
    CHECK(client.sessions("default").size() == 1);
    CHECK(client.sessions("others").empty());
    CHECK(client.tenants()[0].sessions() == 1);
  }
  REQUIRE(poold.await_log("session_ended"));
  CHECK(client.sessions().empty());
  const auto tenants = client.tenants();
  CHECK(tenants[0].sessions() == 0);
  CHECK(tenants[0].sessions_started() == 1);
  CHECK(tenants[0].calls() == 5);
  CHECK(client.health().sessions_started() == 1);
}

TEST_CASE("calls that fail are counted as errors") {
  PooldProcess poold(kDevice);
  AdminClient client(poold);
  RawClient program(poold.endpoint());
  program.open();
  for (int i = 0; i < 3; ++i) {  // calls with an id outside the call table
    CHECK(program.receive_reply_to(program.send_command(0x0fff, {}, 0, wire::kWantsReply)).header.result ==
          801);
  }
  CHECK(client.sessions()[0].errors() == 3);
}

TEST_CASE("a quota changes only for the requested GPU and only to valid limits") {
  PooldProcess poold(kDevice);
  AdminClient client(poold);
  admin::Quota changes;
  changes.set_memory_bytes(8ull << 30);
  changes.set_compute_milli(250);
  changes.set_mode(admin::Quota::HARD);
  CHECK(client.set_quota("default", changes) == StatusCode::OK);
  admin::Quota more;
  more.set_sessions(1);
  more.set_priority(admin::Quota::LATENCY_CRITICAL);
  CHECK(client.set_quota("default", more) == StatusCode::OK);
  const admin::Quota after = client.quota("default");
  CHECK(after.memory_bytes() == 8ull << 30);
  CHECK(after.compute_milli() == 250);
  CHECK(after.mode() == admin::Quota::HARD);
  CHECK(after.priority() == admin::Quota::LATENCY_CRITICAL);
  CHECK(after.sessions() == 1);
  CHECK(after.streams() == 0);

  admin::Quota wrong;
  wrong.set_compute_milli(1001);
  CHECK(client.set_quota("default", wrong) == StatusCode::INVALID_ARGUMENT);
  wrong.set_compute_milli(0);
  CHECK(client.set_quota("default", wrong) == StatusCode::INVALID_ARGUMENT);
  wrong.clear_compute_milli();
  wrong.set_mode(static_cast<admin::Quota::Mode>(9));
  CHECK(client.set_quota("default", wrong) == StatusCode::INVALID_ARGUMENT);
  CHECK(client.set_quota("nobody", changes) == StatusCode::NOT_FOUND);
  CHECK(client.quota("default").SerializeAsString() == after.SerializeAsString());
  admin::GetQuotaRequest nobody;
  nobody.set_tenant("nobody\x1b");
  admin::Quota none;
  CHECK(client.call(&admin::Admin::Stub::GetQuota, nobody, none).error_code() == StatusCode::NOT_FOUND);

  // The new limit applies from the next session on.
  RawClient first(poold.endpoint());
  first.open();
  RawClient second(poold.endpoint());
  second.send_hello();
  CHECK(second.receive_reply().status == hello::Status::busy);
  REQUIRE(eventually([&] { return client.tenants()[0].denied() == 1; }));
  more.set_sessions(0);
  CHECK(client.set_quota("default", more) == StatusCode::OK);
  RawClient(poold.endpoint()).open();
}

TEST_CASE("ending a session tells its program the reason") {
  PooldProcess poold(kDevice);
  AdminClient client(poold);
  RawClient bystander(poold.endpoint());
  bystander.open();
  RawClient program(poold.endpoint());
  program.open();
  program.ping();
  CHECK(client.kill(99, "") == StatusCode::NOT_FOUND);
  CHECK(client.kill(2, std::string(1025, 'x')) == StatusCode::INVALID_ARGUMENT);
  CHECK(client.kill(2, "the GPU\nis needed") == StatusCode::OK);
  const auto heard = program.await_end();
  REQUIRE(heard);
  CHECK(has(*heard, "the GPU?is needed"));
  CHECK(poold.await_log("reason=\"ended by an administrator: the GPU?is needed\""));
  CHECK(eventually([&] { return client.sessions().size() == 1; }));
  CHECK(client.kill(2, "") == StatusCode::NOT_FOUND);
  bystander.ping();
}

TEST_CASE("a session with an unresponsive worker is killed after a grace period") {
  PooldProcess poold(kDevice);
  AdminClient client(poold);
  RawClient program(poold.endpoint());
  program.open();
  const auto worker = static_cast<pid_t>(client.sessions()[0].worker_pid());
  stop(worker);
  CHECK(client.kill(1, "it hangs") == StatusCode::OK);
  CHECK(client.kill(1, "again") == StatusCode::OK);  // starts no second grace period
  CHECK(client.sessions()[0].ending());
  CHECK(await_gone(worker));
  CHECK(poold.await_log("session_ended"));
  CHECK(occurrences(poold.log(), "session_killed") == 1);
}

TEST_CASE("a session is dumped") {
  PooldProcess poold(kDevice);
  AdminClient client(poold);
  RawClient program(poold.endpoint());
  hello::Hello hello = test_hello();
  hello.program = "train\n.py";
  program.open(hello);
  program.ping();
  const admin::SessionDump dump = client.dump(1);
  CHECK(dump.session() == 1);
  CHECK(dump.tenant() == "default");
  CHECK(dump.program() == "train?.py");
  CHECK(dump.worker_pid() == client.sessions()[0].worker_pid());
  CHECK(dump.state() == "running");
  CHECK(dump.no_answer_because().empty());
  CHECK(dump.worker().received() == 1);
  admin::SessionDump none;
  CHECK(client.dump(99, none) == StatusCode::NOT_FOUND);
}

TEST_CASE("a dump of an unresponsive worker times out after two seconds and is retried later") {
  PooldProcess poold(kDevice);
  AdminClient client(poold);
  RawClient program(poold.endpoint());
  program.open();
  program.ping();
  const auto worker = static_cast<pid_t>(client.sessions()[0].worker_pid());
  stop(worker);
  const auto start = std::chrono::steady_clock::now();
  const auto ask_beside = [&] {
    return std::async(std::launch::async, [&poold] {
      admin::SessionDump dump;
      AdminClient(poold).dump(1, dump);
      return dump;
    });
  };
  auto other = ask_beside();
  for (const admin::SessionDump& dump : {client.dump(1), other.get(), client.dump(1)}) {
    CHECK(dump.no_answer_because() == "the worker did not answer within 2 s");
    CHECK_FALSE(dump.has_worker());
    CHECK(dump.worker_pid() == worker);
  }
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(15));
  CHECK(client.health().ready());
  REQUIRE(::kill(worker, SIGCONT) == 0);
  CHECK(client.dump(1).has_worker());
  program.ping();

  stop(worker);
  auto asked = ask_beside();
  REQUIRE(::kill(worker, SIGKILL) == 0);
  admin::SessionDump last;
  const StatusCode status = client.dump(1, last);
  CHECK((status == StatusCode::NOT_FOUND || last.no_answer_because() == "the worker has exited"));
  asked.wait();
}

TEST_CASE("a dump of a worker that exits meanwhile says that the worker has exited") {
  PooldProcess poold(kDevice);
  AdminClient client(poold);
  for (uint64_t session = 1; session <= 10; ++session) {
    RawClient program(poold.endpoint());
    program.open();
    program.ping();
    const auto worker = static_cast<pid_t>(client.sessions().rbegin()->worker_pid());
    stop(worker);
    stop(poold.pid());  // poold then finds the request, the closed socket and SIGCHLD at once, in any order
    auto asked = std::async(std::launch::async, [&poold, session] {
      admin::SessionDump dump;
      const StatusCode status = AdminClient(poold).dump(session, dump);
      return std::pair(status, dump.no_answer_because());
    });
    REQUIRE(::kill(worker, SIGKILL) == 0);
    REQUIRE(::kill(poold.pid(), SIGCONT) == 0);
    const auto answer = asked.get();
    CAPTURE(session, answer.first, answer.second);
    CHECK((answer.first == StatusCode::NOT_FOUND || answer.second == "the worker has exited"));
  }
}

TEST_CASE("a watcher gets snapshots until it leaves") {
  PooldProcess poold(kDevice);
  AdminClient client(poold);
  admin::WatchRequest request;
  for (const uint32_t wrong : {0u, 99u, 10'001u}) {
    request.set_interval_ms(wrong);
    grpc::ClientContext context;
    CHECK(client.stub().Watch(&context, request)->Finish().error_code() == StatusCode::INVALID_ARGUMENT);
  }
  request.set_interval_ms(100);
  grpc::ClientContext context;
  const auto reader = client.stub().Watch(&context, request);
  admin::Snapshot snapshot;
  REQUIRE(reader->Read(&snapshot));
  CHECK(snapshot.gpus().size() == 2);
  CHECK(snapshot.sessions().empty());
  RawClient program(poold.endpoint());
  program.open();
  for (int i = 0; i < 100 && snapshot.sessions().empty(); ++i) REQUIRE(reader->Read(&snapshot));
  CHECK(snapshot.sessions().size() == 1);
  context.TryCancel();
  CHECK(reader->Finish().error_code() == StatusCode::CANCELLED);
}

TEST_CASE("the number of Watch calls is limited and finished calls make room") {
  PooldProcess poold(kDevice);
  AdminClient client(poold);
  admin::WatchRequest request;
  request.set_interval_ms(10'000);
  admin::Snapshot snapshot;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<admin::Snapshot>>> readers;
  for (int i = 0; i < 16; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(client.stub().Watch(contexts.back().get(), request));
    REQUIRE(readers.back()->Read(&snapshot));
  }
  const auto try_once_more = [&] {
    grpc::ClientContext context;
    const auto reader = client.stub().Watch(&context, request);
    const bool served = reader->Read(&snapshot);
    if (served) context.TryCancel();
    const StatusCode end = reader->Finish().error_code();
    return served ? StatusCode::OK : end;
  };
  CHECK(try_once_more() == StatusCode::RESOURCE_EXHAUSTED);
  CHECK(client.health().ready());
  contexts[3]->TryCancel();
  CHECK(eventually([&] { return try_once_more() == StatusCode::OK; }));
  // SIGTERM ends the streams of clients that still watch, and poold, at once.
  const auto start = std::chrono::steady_clock::now();
  CHECK(poold.stop() == 0);
  CHECK(std::chrono::steady_clock::now() - start < milliseconds(10'000));
  CHECK_FALSE(readers[0]->Read(&snapshot));
  CHECK_FALSE(readers[0]->Finish().ok());
}

TEST_CASE("the admin socket refuses other users and tolerates peers without gRPC") {
  PooldProcess poold(kDevice);
  struct stat status {};
  REQUIRE(::stat(poold.admin_socket().c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  AdminClient client(poold);
  CHECK(client.health().ready());
  std::vector<int> strangers;
  for (int i = 0; i < 40; ++i) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    poold.admin_socket().copy(address.sun_path, sizeof address.sun_path - 1);
    strangers.push_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(strangers.back(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    const std::string nonsense =
        i % 2 == 0 ? std::string(5000, static_cast<char>(i)) : "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    [[maybe_unused]] const ssize_t sent =
        ::send(strangers.back(), nonsense.data(), nonsense.size(), MSG_NOSIGNAL);
  }
  CHECK(AdminClient(poold).health().ready());
  for (const int stranger : strangers) ::close(stranger);
  CHECK(AdminClient(poold).health().ready());
  CHECK(poold.stop() == 0);
  CHECK_FALSE(std::filesystem::exists(poold.admin_socket()));
}

TEST_CASE("two poold do not share an admin socket; a dead one's is taken over") {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "shared.sock";
  auto first = std::make_unique<PooldProcess>(kDevice, std::vector<std::string>{"--admin-socket", path});
  const Finished second = run_to_end(
      {program_path("poold"), "--device", kDevice, "--listen", "tcp://127.0.0.1:0", "--admin-socket", path});
  CHECK(second.status == 1);
  CHECK(has(second.output, "another poold uses the admin socket '" + path + "'"));
  CHECK(AdminClient(path).health().pid() == first->pid());
  first->process().signal(SIGKILL);
  first->process().wait();
  CHECK(std::filesystem::exists(path));
  PooldProcess third(kDevice, {"--admin-socket", path});
  CHECK(AdminClient(path).health().pid() == third.pid());
}

TEST_CASE("poold runs without an admin socket with --admin-socket none") {
  PooldProcess poold(kDevice, {"--admin-socket", "none"});
  CHECK_FALSE(has(poold.log(), "admin_socket"));
  CHECK_FALSE(std::filesystem::exists(poold.admin_socket()));
  const Finished wrong = run_to_end({program_path("poold"), "--device", kDevice, "--listen",
                                     "tcp://127.0.0.1:0", "--admin-socket", "/proc/x/y"});
  CHECK(wrong.status == 1);
  CHECK(has(wrong.output, "/proc/x/y"));
}

TEST_CASE("poold answers Prometheus and health checks over HTTP") {
  PooldProcess poold(kDevice, {"--metrics", "127.0.0.1:0", "--max-sessions", "1"});
  const uint16_t port = metrics_port(poold.log());
  CHECK(http_get(port, "/healthz").ends_with("alive\n"));
  CHECK(http_get(port, "/readyz").ends_with("ready\n"));
  CHECK(http_get(port, "/").starts_with("HTTP/1.1 404 "));
  CHECK(has(http_get(port, "/metrics"), "\ngpupool_sessions 0\n"));
  {
    RawClient program(poold.endpoint());
    program.open();
    program.ping();
    CHECK(has(http_get(port, "/metrics"),
              "\ngpupool_session_calls_total{session=\"1\",tenant=\"default\"} 1\n"));
    const std::string full = http_get(port, "/readyz");
    CHECK(full.starts_with("HTTP/1.1 503 "));
    CHECK(has(full, "all session slots are in use"));
    CHECK(http_get(port, "/healthz").starts_with("HTTP/1.1 200 "));
  }
  REQUIRE(poold.await_log("session_ended"));
  const std::string after = http_get(port, "/metrics");
  CHECK_FALSE(has(after, "session=\"1\""));
  CHECK(has(after, "\ngpupool_tenant_calls_total{tenant=\"default\"} 1\n"));
  CHECK(has(after, "\ngpupool_tenant_sessions_started_total{tenant=\"default\"} 1\n"));
  const Finished wrong =
      run_to_end({program_path("poold"), "--device", kDevice, "--listen", "tcp://127.0.0.1:0",
                  "--admin-socket", "none", "--metrics", "127.0.0.1:" + std::to_string(port)});
  CHECK(wrong.status == 1);
  CHECK(has(wrong.output, "for metrics"));
}

TEST_CASE("poold is not ready while no worker can start") {
  const TemporaryFolder folder;
  const std::string flag = folder.path() / "broken";
  PooldProcess poold(kDevice, {"--metrics", "127.0.0.1:0", "--idle-workers", "1"},
                     {{"FAKE_DEVICE", "flag:" + flag}});
  const uint16_t port = metrics_port(poold.log());
  CHECK(http_get(port, "/readyz").ends_with("ready\n"));
  folder.write("broken", "");
  for (const pid_t worker : poold.workers()) ::kill(worker, SIGKILL);
  CHECK(eventually([&] { return http_get(port, "/readyz").starts_with("HTTP/1.1 503 "); }));
  CHECK(has(http_get(port, "/readyz"), "no worker can start"));
  std::filesystem::remove(flag);
  CHECK(eventually([&] { return http_get(port, "/readyz").ends_with("\r\n\r\nready\n"); }));
}
