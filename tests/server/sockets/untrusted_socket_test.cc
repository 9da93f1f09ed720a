// Tests how poold reads and closes descriptors that clients and workers also hold.
#include "server/sockets/untrusted_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>

#include "server/sockets/descriptor_closer.h"
#include "tests/support/catch.h"
#include "tests/support/hostile_descriptors.h"
#include "tests/support/processes.h"
#include "tests/support/skip.h"

using namespace gpupool;
using namespace gpupool::server;
using namespace gpupool::testing;

namespace {

struct Sockets {
  explicit Sockets(int type = SOCK_STREAM) {
    REQUIRE(::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) == 0);
  }
  ~Sockets() {
    for (const int end : ends) {
      if (end >= 0) ::close(end);
    }
  }
  int ends[2];
};

std::string text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool is_open(int descriptor) {
  return ::fcntl(descriptor, F_GETFD) >= 0;
}

// Runs the context until the closer has no helper thread left.
void run_to_end(asio::io_context& context, const DescriptorCloser& closer) {
  context.restart();
  const auto give_up = std::chrono::steady_clock::now() + kPatience;
  do context.run_for(std::chrono::milliseconds(20));
  while ((closer.helpers() != 0 || !context.stopped()) && std::chrono::steady_clock::now() < give_up);
  CHECK(closer.helpers() == 0);
}

}  // namespace

TEST_CASE("bytes are received up to a descriptor which stays queued with its bytes") {
  Sockets sockets;
  const int file = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  std::byte buffer[16];
  CHECK(receive_bytes(sockets.ends[1], buffer).error().code == ErrorCode::limit);
  REQUIRE(::send(sockets.ends[0], "abcd", 4, 0) == 4);
  const auto first = receive_bytes(sockets.ends[1], std::span(buffer).first(3));
  REQUIRE(first);
  CHECK(text(std::span(buffer).first(*first)) == "abc");
  const auto second = receive_bytes(sockets.ends[1], buffer);
  REQUIRE(second);
  CHECK(text(std::span(buffer).first(*second)) == "d");
  REQUIRE(send_with_descriptors(sockets.ends[0], "ef", {file}) == 0);
  for (int again = 0; again < 2; ++again) {
    const auto third = receive_bytes(sockets.ends[1], buffer);
    REQUIRE_FALSE(third);
    CHECK(third.error().code == ErrorCode::malformed);
  }
  char bytes[4];
  CHECK(::recv(sockets.ends[1], bytes, sizeof bytes, MSG_DONTWAIT) == 2);
  ::close(sockets.ends[0]);
  sockets.ends[0] = -1;
  CHECK(receive_bytes(sockets.ends[1], buffer).error().code == ErrorCode::closed);
  ::close(file);
}

TEST_CASE("urgent data is received in order and a descriptor with it is detected") {
  Sockets sockets;
  refuse_descriptors(sockets.ends[1]);
  REQUIRE(::send(sockets.ends[0], "a", 1, 0) == 1);
  if (::send(sockets.ends[0], "b", 1, MSG_OOB) != 1)
    return report_skip("this kernel has no urgent bytes on Unix sockets");
  REQUIRE(::send(sockets.ends[0], "c", 1, 0) == 1);
  std::string all;
  std::byte buffer[16];
  for (auto got = receive_bytes(sockets.ends[1], buffer); got; got = receive_bytes(sockets.ends[1], buffer))
    all += text(std::span(buffer).first(*got));
  CHECK(all == "abc");
}

TEST_CASE("a read reports completion and end of file and descriptors and cancellation as different results") {
  Sockets sockets;
  asio::io_context context;
  std::optional<asio::posix::stream_descriptor> stream(std::in_place, context, ::dup(sockets.ends[1]));
  std::byte buffer[4];
  std::optional<asio::error_code> status;
  size_t count = 0;
  const auto start = [&] {
    status.reset();
    async_receive(*stream, buffer, [&](const asio::error_code& how, size_t received) {
      status = how;
      count = received;
    });
    context.restart();
    context.poll();
  };
  const auto run = [&] {
    context.restart();
    context.poll();
  };
  start();
  REQUIRE(::send(sockets.ends[0], "abc", 3, 0) == 3);
  run();
  CHECK_FALSE(status);
  REQUIRE(::send(sockets.ends[0], "def", 3, 0) == 3);
  run();
  CHECK((status && !*status && count == 4 && text(buffer) == "abcd"));
  const int file = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  SECTION("the end") {
    start();
    ::shutdown(sockets.ends[0], SHUT_WR);
    run();
    CHECK((status && *status == asio::error::eof && count == 2));
  }
  SECTION("a descriptor") {
    start();
    REQUIRE(send_with_descriptors(sockets.ends[0], "gh", {file}) == 0);
    run();
    CHECK((status && *status == asio::error::no_permission && count == 2));
  }
  SECTION("cancelled") {
    start();
    stream.reset();
    run();
    CHECK((status && *status == asio::error::operation_aborted));
  }
  ::close(file);
}

TEST_CASE("a read of zero bytes completes at once") {
  Sockets sockets;
  asio::io_context context;
  asio::posix::stream_descriptor stream(context, ::dup(sockets.ends[1]));
  std::optional<asio::error_code> status;
  async_receive(stream, {}, [&](const asio::error_code& how, size_t) { status = how; });
  CHECK_FALSE(status);
  context.poll();
  CHECK((status && !*status));
  async_receive(stream, {}, [&](const asio::error_code& how, size_t) { status = how; });
  stream.close();
  context.restart();
  context.poll();
  CHECK(*status == asio::error::operation_aborted);
}

TEST_CASE("a socket with SO_LINGER is closed by a child process without blocking") {
  asio::io_context context;
  DescriptorCloser closer(context);
  LingeringSocket lingers;
  const int descriptor = ::fcntl(lingers.descriptor(), F_DUPFD_CLOEXEC, 0);
  lingers.close();
  const auto start = std::chrono::steady_clock::now();
  bool told = false;
  close_without_blocking(descriptor);
  after_closing([&] { told = true; });
  CHECK(is_open(descriptor));
  CHECK_FALSE(told);
  run_to_end(context, closer);
  CHECK(told);
  CHECK_FALSE(is_open(descriptor));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(LingeringSocket::kSeconds / 2));
}

TEST_CASE(
    "a Unix socket with unread descriptors is closed by a child process and its peer sees end of file") {
  asio::io_context context;
  DescriptorCloser closer(context);
  LingeringSocket lingers;
  Sockets sockets;
  REQUIRE(send_with_descriptors(sockets.ends[0], "ab", std::vector<int>(253, lingers.descriptor())) == 0);
  lingers.close();
  const auto start = std::chrono::steady_clock::now();
  close_connection(std::exchange(sockets.ends[1], -1));
  char byte = 0;
  CHECK(::recv(sockets.ends[0], &byte, 1, 0) == 0);
  run_to_end(context, closer);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(LingeringSocket::kSeconds / 2));
}

TEST_CASE("descriptors of one event loop turn go to one child process and this process's own stay open") {
  asio::io_context context;
  DescriptorCloser closer(context);
  const int kept = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  std::vector<int> closed;
  for (int i = 0; i < 100; ++i) closed.push_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (const int descriptor : closed) close_without_blocking(descriptor);
  context.run_one();
  CHECK(closer.helpers() == 1);
  for (const int descriptor : closed) CHECK_FALSE(is_open(descriptor));
  CHECK(is_open(kept));
  run_to_end(context, closer);
  ::close(kept);
}

TEST_CASE("a Unix socket without unread descriptors is closed at once") {
  asio::io_context context;
  DescriptorCloser closer(context);
  Sockets sockets;
  REQUIRE(::send(sockets.ends[0], "abcd", 4, 0) == 4);
  const int descriptor = std::exchange(sockets.ends[1], -1);
  close_connection(descriptor);
  CHECK_FALSE(is_open(descriptor));
  context.poll();
  CHECK(closer.helpers() == 0);
}

TEST_CASE("without a closer descriptors are closed at once") {
  const int file = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  close_without_blocking(file);
  CHECK_FALSE(is_open(file));
  close_without_blocking(-1);
  bool told = false;
  after_closing([&] { told = true; });
  CHECK(told);
}
