// Tests that poold keeps answering other clients when workers flood or block its log, and when its log or
// audit file blocks.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <string>

#include "tests/server/attacked_poold.h"
#include "tests/support/full_pipe.h"
#include "tests/support/processes.h"
#include "tests/support/skip.h"
#include "tests/support/worker_gate.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

std::string drain(int pipe) {
  std::string all;
  char bytes[64 * 1024];
  for (ssize_t got = 0; (got = ::read(pipe, bytes, sizeof bytes)) > 0;)
    all.append(bytes, static_cast<size_t>(got));
  return all;
}

}  // namespace

TEST_CASE("a log without a reader blocks no client") {
  const TemporaryFolder folder;
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
  fill_pipe(ends[1]);
  ::fcntl(ends[1], F_SETFL, 0);
  const std::string log = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(ends[1]),
                    port_file = folder.path() / "port";
  Process poold(
      {"/bin/sh", "-c", "exec \"$@\" 2>" + log, "sh", program_path("poold"), "--device", kDevice, "--listen",
       "tcp://127.0.0.1:0", "--port-file", port_file, "--admin-socket", "none", "--log-level", "debug"},
      {});
  uint16_t port = 0;
  REQUIRE(eventually([&] { return static_cast<bool>(std::ifstream(port_file) >> port); }));
  for (int i = 0; i < 20; ++i) {
    RawClient client({"tcp", "127.0.0.1", port});
    client.open();
    client.ping();
  }
  poold.signal(SIGTERM);
  CHECK(poold.wait() == 0);
  for (const int end : ends) ::close(end);
}

TEST_CASE("a blocked audit file stops new sessions and nothing else") {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "audit";
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  const int reader = ::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  fill_pipe(reader);
  const AttackedPoold server({"--audit-file", path}, {}, false);
  RawClient first(server.poold->endpoint());
  first.open();  // poold does not know yet that the file blocks
  std::optional<hello::HelloReply> reply;
  CHECK(eventually([&] {
    RawClient client(server.poold->endpoint());
    client.send_hello();
    reply = client.receive_reply();
    return reply->status != hello::Status::ok;
  }));
  CHECK(reply->status == hello::Status::busy);
  CHECK(reply->reason.find("audit file") != std::string::npos);
  CHECK(server.poold->await_log("audit_stalled"));
  CHECK(http_get(server.http, "/healthz").find(" 200 ") != std::string::npos);
  first.ping();
  std::string records;
  CHECK(eventually([&] {
    records += drain(reader);
    return server.poold->log().find("audit_goes_on") != std::string::npos;
  }));
  server.must_answer();
  first.close();
  CHECK(server.poold->await_log("session_ended session=1 "));
  records += drain(reader);
  CHECK(records.find("\"session_started\",\"session\":1,") != std::string::npos);
  CHECK(server.poold->stop() == 0);
  records += drain(reader);
  CHECK(records.find("\"session_ended\",\"session\":1,") != std::string::npos);
  ::close(reader);
}

TEST_CASE("a client waiting for a worker gets no session once the audit file is blocked") {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "audit.json";
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  const int reader = ::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  fill_pipe(reader);
  const WorkerGate gate;
  std::vector<std::string> options = gate.options();
  options.insert(options.end(), {"--audit-file", path, "--max-sessions", "2"});
  const AttackedPoold server(options, gate.environment(), false);
  REQUIRE(server.poold->await_log("worker_ready"));
  gate.close();
  RawClient first(server.poold->endpoint()), waits(server.poold->endpoint());
  first.open();
  waits.send_hello();
  CHECK(eventually([&] {
    RawClient client(server.poold->endpoint());
    client.send_hello();
    return client.receive_reply().reason.find("audit file") != std::string::npos;
  }));
  gate.open();
  const auto reply = waits.receive_reply();
  CHECK(reply.status == hello::Status::busy);
  CHECK(reply.reason.find("audit file") != std::string::npos);
  first.ping();
  ::close(reader);
}

TEST_CASE("a worker can neither forge lines of the log nor truncate it") {
  const AttackedPoold server({"--no-sandbox", "--log-level", "debug"}, {{"FAKE_DEVICE", "hostile:log"}},
                             false);
  const auto forged = [](const pid_t worker, const std::string& session, int number) {
    return " info worker[" + std::to_string(worker) + "] worker_output " + session +
           "line=\"2026-01-01T00:00:00.000Z info poold[1] session_started session=" + std::to_string(number) +
           "\"\n";
  };
  REQUIRE(eventually([&] { return !server.poold->workers().empty(); }));
  const pid_t idle = server.poold->workers().front();
  REQUIRE(server.poold->await_log("worker_ready worker=" + std::to_string(idle)));
  REQUIRE(::kill(idle, SIGUSR1) == 0);
  for (const int number : {901, 902, 904}) CHECK(server.poold->await_log(forged(idle, "", number)));
  RawClient hostile(server.poold->endpoint());
  const pid_t worker = static_cast<pid_t>(hostile.open().worker_pid);
  REQUIRE(::kill(worker, SIGUSR1) == 0);
  CHECK(server.poold->await_log(forged(worker, "session=1 ", 904)));
  CHECK(server.poold->await_log(" info worker[" + std::to_string(worker) + "] spoilt session=1\n"));
  const std::string log = server.poold->log();
  CHECK(log.find("\n2026-01-01T00:00:00.000Z info poold[1]") == std::string::npos);
  CHECK(log.find(std::string(5000, 'x')) == std::string::npos);
  CHECK(log.find("listening") != std::string::npos);
}

namespace {

// Kills the worker that blocks poold, before poold is stopped.
struct Kill {
  ~Kill() { ::kill(pid, SIGKILL); }
  pid_t pid;
};

}  // namespace

TEST_CASE("a worker that does not finish a write to its log blocks no client") {
  const AttackedPoold server({"--no-sandbox", "--worker-user", "root"}, {{"FAKE_DEVICE", "hostile:log-slow"}},
                             false);
  RawClient hostile(server.poold->endpoint());
  const Kill worker{static_cast<pid_t>(hostile.open().worker_pid)};
  REQUIRE(::kill(worker.pid, SIGUSR1) == 0);
  REQUIRE(server.poold->await_log("fake_writes"));
  if (server.poold->log().find("fake_writes slowly") == std::string::npos)
    return report_skip("this process may not use userfaultfd");
  server.must_answer();
}

TEST_CASE("a worker that sends descriptors on its log is ended and blocks no client") {
  const AttackedPoold server({"--no-sandbox"}, {{"FAKE_DEVICE", "hostile:log-descriptors"}});
  RawClient hostile(server.poold->endpoint());
  const pid_t worker = static_cast<pid_t>(hostile.open().worker_pid);
  REQUIRE(::kill(worker, SIGUSR1) == 0);
  if (server.old_kernel)
    server.must_answer_until("worker_ended_by_poold");
  else
    REQUIRE(server.poold->await_log("fake_sent errno=1"));
  server.must_answer();
}
