// Tests that poold keeps answering other clients when clients and workers send it descriptors whose last
// close() takes a minute.
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <optional>
#include <string>

#include "protocol/wire/checkpoint.h"
#include "tests/server/attacked_poold.h"
#include "tests/support/skip.h"
#include "tests/support/slow_file.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

constexpr size_t kMostInMessage = 253;  // SCM_MAX_FD of the kernel

std::string whole(const hello::Hello& hello) {
  const std::string body = hello::encode(hello);
  const wire::Preamble preamble{.length = static_cast<uint32_t>(body.size())};
  return std::string(RawClient::bytes_of(preamble)) + body;
}

bool peer_ends(int connected) {
  char bytes[4096];
  const timeval patience{20, 0};
  ::setsockopt(connected, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  ssize_t got = 0;
  while ((got = ::recv(connected, bytes, sizeof bytes, 0)) > 0) {
  }
  return got == 0 || errno == ECONNRESET;
}

}  // namespace

TEST_CASE("descriptors sent before or with a hello block no other client") {
  const AttackedPoold server;
  const bool with_hello = GENERATE(false, true), many = GENERATE(false, true), leaves = GENERATE(false, true);
  CAPTURE(with_hello, many, leaves);
  LingeringSocket lingers;
  const int connected = server.connect();
  server.send(connected, with_hello ? whole(test_hello()) : "GPUP", lingers, many ? kMostInMessage : 1);
  if (leaves) ::close(connected);
  server.must_answer();
  if (server.old_kernel && !leaves) CHECK(peer_ends(connected));
  if (server.old_kernel && !leaves)
    CHECK(server.poold->await_log("descriptors received before the session started"));
  if (!leaves) ::close(connected);
  server.must_answer();
  CHECK(server.poold->stop() == 0);
}

TEST_CASE("unread descriptors of a timed-out hello block no other client") {
  const AttackedPoold server({"--hello-timeout", "1"});
  LingeringSocket lingers;
  const int connected = server.connect();
  REQUIRE(::send(connected, "GP", 2, 0) == 2);
  server.send(connected, "UP", lingers);
  server.must_answer_until("client_refused");
  server.must_answer();
  ::close(connected);
}

TEST_CASE("urgent data with descriptors blocks no other client") {
  const AttackedPoold server;
  LingeringSocket lingers;
  const int connected = server.connect();
  iovec part{const_cast<char*>("GP"), 1};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof space;
  cmsghdr* const control = CMSG_FIRSTHDR(&message);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(sizeof(int));
  const int descriptor = lingers.descriptor();
  std::memcpy(CMSG_DATA(control), &descriptor, sizeof descriptor);
  if (::sendmsg(connected, &message, MSG_OOB | MSG_NOSIGNAL) >= 0) lingers.close();
  const std::string hello = whole(test_hello());
  (void)::send(connected, hello.data(), hello.size(), MSG_NOSIGNAL);
  server.must_answer();
  ::close(connected);
  server.must_answer();
}

TEST_CASE("descriptors after the hello of a session or watcher or checkpoint client block no other client") {
  const std::string kind = GENERATE("session", "watcher", "checkpoint");
  CAPTURE(kind);
  hello::Hello hello = test_hello();
  hello.monitor = kind == "watcher";
  hello.checkpoint = kind == "checkpoint";
  const AttackedPoold server;
  LingeringSocket lingers;
  const int connected = server.connect();
  const std::string first = whole(hello);
  REQUIRE(::send(connected, first.data(), first.size(), 0) == static_cast<ssize_t>(first.size()));
  server.send(connected, std::string(sizeof(wire::Preamble) + sizeof(wire::CheckpointQuestion), '\0'),
              lingers);
  server.must_answer();
  ::close(connected);
  server.must_answer();
}

TEST_CASE("descriptors after a refused hello block no other client") {
  const AttackedPoold server({"--max-sessions", "1"});
  const bool knows = GENERATE(false, true);
  CAPTURE(knows);
  RawClient only(server.poold->endpoint());
  only.open();
  LingeringSocket lingers;
  const int connected = server.connect();
  const std::string hello = whole(test_hello());
  REQUIRE(::send(connected, hello.data(), hello.size(), 0) == static_cast<ssize_t>(hello.size()));
  char byte = 0;
  if (knows) CHECK(::recv(connected, &byte, 1, 0) == 1);  // receives the refusal
  server.send(connected, "more", lingers);
  const auto start = std::chrono::steady_clock::now();
  CHECK(server.poold->await_log("client_refused"));
  CHECK(http_get(server.http, "/healthz").find(" 200 ") != std::string::npos);
  ::close(connected);
  only.ping();
  CHECK(http_get(server.http, "/healthz").find(" 200 ") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - start < kSoon);
}

namespace {

// Accepts one connection and never reads from it.
struct Peer {
  Peer() {
    listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{
        .sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    socklen_t size = sizeof address;
    REQUIRE(::bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(listener, 1) == 0);
    const timeval patience{30, 0};
    ::setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);  // limits accept()
    REQUIRE(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port = std::to_string(ntohs(address.sin_port));
  }
  ~Peer() {
    ::close(connection);
    ::close(listener);
  }
  void accept() {
    connection = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    REQUIRE(connection >= 0);
  }
  int listener = -1, connection = -1;
  std::string port;
};

}  // namespace

// The worker fills the socket of a connection to this test, so that its close() lingers, and sends it to
// poold.
TEST_CASE("a worker that sends descriptors is ended and blocks no other client") {
  const std::string how = GENERATE("deposit", "share", "many");
  CAPTURE(how);
  Peer peer;
  const AttackedPoold server({"--no-sandbox"},
                             {{"FAKE_DEVICE", "hostile:linger-" + how}, {"FAKE_DEVICE_PEER", peer.port}});
  RawClient hostile(server.poold->endpoint());
  const pid_t worker = static_cast<pid_t>(hostile.open().worker_pid);
  REQUIRE(::kill(worker, SIGUSR1) == 0);
  peer.accept();
  if (server.old_kernel)
    server.must_answer_until("worker_ended_by_poold");
  else
    REQUIRE(server.poold->await_log("fake_sent errno=1"));  // the kernel rejected it (EPERM)
  server.must_answer();
  ::kill(worker, SIGKILL);
  CHECK(await_gone(worker));
  server.must_answer();
}

TEST_CASE("descriptors that a worker sends to the admin socket block no other client") {
  Peer peer;
  const TemporaryFolder folder;
  const std::string socket = folder.path() / "admin.sock";
  const AttackedPoold server(
      {"--no-sandbox", "--worker-user", "root", "--admin-socket", socket},
      {{"FAKE_DEVICE", "hostile:admin"}, {"FAKE_DEVICE_PEER", peer.port}, {"FAKE_DEVICE_SOCKET", socket}});
  RawClient hostile(server.poold->endpoint());
  const pid_t worker = static_cast<pid_t>(hostile.open().worker_pid);
  REQUIRE(::kill(worker, SIGUSR1) == 0);
  peer.accept();
  CHECK(server.poold->await_log("admin_denied"));
  server.must_answer();
}

TEST_CASE("a file of an unresponsive FUSE file system blocks only the worker that sends it") {
  std::optional<SlowFile> file;
  try {
    file.emplace();
  } catch (const std::exception& error) {
    return report_skip(error.what());
  }
  const AttackedPoold server({"--no-sandbox", "--worker-user", "root"},
                             {{"FAKE_DEVICE", "hostile:linger-fuse"}, {"FAKE_DEVICE_PEER", file->path()}});
  RawClient hostile(server.poold->endpoint());
  const pid_t worker = static_cast<pid_t>(hostile.open().worker_pid);
  REQUIRE(::kill(worker, SIGUSR1) == 0);
  if (server.old_kernel)
    server.must_answer_until("worker_ended_by_poold");
  else
    REQUIRE(server.poold->await_log("fake_sent errno=1"));
  ::kill(worker, SIGKILL);
  CHECK(eventually([&] { return file->holds_up_somebody(); }));  // the worker blocks in its exit
  server.must_answer();
  CHECK(server.poold->stop() == 0);
}

TEST_CASE("messages of an exited worker are read up to a limit") {
  const AttackedPoold server({"--no-sandbox"}, {{"FAKE_DEVICE", "hostile:last-words"}}, false);
  RawClient hostile(server.poold->endpoint());
  const pid_t worker = static_cast<pid_t>(hostile.open().worker_pid);
  REQUIRE(::kill(worker, SIGUSR1) == 0);
  REQUIRE(server.poold->await_log("fake_offered"));
  REQUIRE(::kill(server.poold->pid(), SIGSTOP) == 0);
  CHECK(eventually([&] { return is_zombie(worker); }));
  REQUIRE(::kill(server.poold->pid(), SIGCONT) == 0);
  REQUIRE(server.poold->await_log("session_ended session=1 "));
  INFO(server.poold->log());
  // Its last message was not read.
  CHECK(server.poold->log().find("deposited an image") == std::string::npos);
  server.must_answer();
}

TEST_CASE("a stopped worker blocks no other client") {
  const AttackedPoold server({}, {}, false);
  RawClient client(server.poold->endpoint());
  const pid_t worker = static_cast<pid_t>(client.open().worker_pid);
  REQUIRE(::kill(worker, SIGSTOP) == 0);
  const auto idle = server.poold->workers();
  for (const pid_t one : idle) REQUIRE(::kill(one, SIGSTOP) == 0);
  const auto start = std::chrono::steady_clock::now();
  CHECK(http_get(server.http, "/healthz").find(" 200 ") != std::string::npos);
  CHECK(server.poold->stop() == 0);
  CHECK(std::chrono::steady_clock::now() - start < kSoon);
}
