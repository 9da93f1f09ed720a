// Tests which connection a worker continues a session on if the client opens several, and what a session does
// while it has none.
#include "server/worker/session/resumption.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <future>
#include <optional>
#include <stdexcept>

#include "tests/server/worker/test_client.h"
#include "tests/support/catch.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::worker;
using server::ControlKind;

namespace {

// A connected pair of sockets, of which the other side takes ends[1].
struct Sockets {
  explicit Sockets(int type = SOCK_STREAM) {
    REQUIRE(::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) == 0);
  }
  ~Sockets() { ::close(ends[0]); }
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;
  int ends[2];
};

// The control socket, and the worker's side of it.
struct ControlSocket : Sockets {
  ControlSocket() : Sockets(SOCK_SEQPACKET) {}
  ~ControlSocket() {
    ::shutdown(ends[0], SHUT_RDWR);  // ends the thread of `control`
    control.reset();
    ::close(ends[1]);
  }
  std::optional<Control> control{std::in_place, ends[1], nullptr};
};

// Called by several threads, so without assertions.
std::unique_ptr<transport::Connection> adopt(int descriptor) {
  auto connection = transport::adopt_stream(descriptor, "client", {});
  if (!connection) throw std::runtime_error(connection.error().message);
  return std::move(*connection);
}

server::ControlMessage offer(const Sockets& client) {
  server::ControlMessage message{.kind = ControlKind::resume, .descriptor = client.ends[1]};
  const server::packet::Resume body{};
  std::memcpy(message.body_bytes.data(), &body, sizeof body);
  return message;
}

}  // namespace

TEST_CASE("a connection that comes while an earlier one is taken over replaces it") {
  const Sockets first, second, third;
  ControlSocket poold;
  Resumptions offers(*poold.control);
  transport::ResumableConnection connection(adopt(first.ends[1]));
  connection.start();

  std::optional<Resumption> resumption;
  std::promise<void> again;
  unsigned welcomed = 0;
  const auto welcome = [&](const server::ControlMessage& message, uint64_t) {
    if (++welcomed == 1)
      resumption->take(offer(third));
    else
      again.set_value();
    return Result(adopt(message.descriptor));
  };
  resumption.emplace(connection, 0,
                     Resumption::Terms{&offers, welcome, std::chrono::seconds(60), /*session_number=*/1});
  resumption->take(offer(second));
  REQUIRE(again.get_future().wait_for(std::chrono::seconds(20)) == std::future_status::ready);

  const iovec bytes{const_cast<char*>("hello"), 5};
  REQUIRE(transport::send_all(connection, {&bytes, 1}, transport::Clock::now() + std::chrono::seconds(20)));
  char received[5];
  REQUIRE(::recv(third.ends[0], received, sizeof received, MSG_WAITALL) == sizeof received);
  CHECK(std::string_view(received, sizeof received) == "hello");
}

TEST_CASE("a client that closes the connection by which it resumes is not awaited for the whole timeout") {
  const Sockets first, second;
  ControlSocket poold;
  Resumptions offers(*poold.control);
  transport::ResumableConnection connection(adopt(first.ends[1]));
  connection.start();
  const auto welcome = [&](const server::ControlMessage& message, uint64_t) {
    ::close(message.descriptor);
    return Result<std::unique_ptr<transport::Connection>>(Error{ErrorCode::reset, "connection lost"});
  };
  Resumption resumption(connection, 0,
                        Resumption::Terms{&offers, welcome, std::chrono::hours(1), /*session_number=*/1});
  resumption.take(offer(second));
  for (const uint64_t closed : {0u, 1u}) {  // the first connection is broken on this side
    const auto told = server::receive_control(poold.ends[0]);
    REQUIRE(told);
    REQUIRE(told->kind == ControlKind::connection_broken);
    CHECK(told->body<server::packet::ConnectionBroken>().closed == closed);
  }
  CHECK(gpupool::testing::eventually([&] { return connection.over(); }));
}

TEST_CASE("a free takes effect while the client is away") {
  using test::FakeDriver;
  ControlSocket poold;
  transport::ResumableConnection* connection = nullptr;
  test::TestClient client(false, &*poold.control, 0, false, nullptr, false, {}, {}, [&](SessionStart& start) {
    auto resumable = std::make_unique<transport::ResumableConnection>(std::move(start.connection));
    resumable->start();
    connection = start.resumable = resumable.get();
    start.resume.timeout = std::chrono::hours(1);
    start.connection = std::move(resumable);
  });
  client.retain();
  client.create_stream(0);
  client.map(0, FakeDriver::kGranularity);
  REQUIRE(client.ask(wire::Command::synchronize_context, {}) == CUDA_SUCCESS);
  client.fake.hold(0);
  client.call("cuMemsetD8Async",
              test::bytes_of(client.address(0), uint8_t{1}, uint64_t{16}, test::stream_handle(0)));
  const wire::FreeMemory free{client.address(0), FakeDriver::kGranularity, wire::kAllStreams};
  client.send(wire::Command::free_memory, test::bytes_of(free));
  REQUIRE(client.ask(wire::Command::await_barriers, {}) == CUDA_SUCCESS);
  CHECK(client.fake.used() == FakeDriver::kGranularity);
  CHECK(client.silent());  // until the executor sleeps

  connection->break_carrier({ErrorCode::lost, "cut"});
  client.fake.let_go(0);
  CHECK(gpupool::testing::eventually([&] { return client.fake.used() == 0; }));
  connection->close();
}
