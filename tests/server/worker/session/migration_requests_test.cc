// Tests how a session passes poold's request to migrate to its client, and the answer back.
#include "server/worker/session/migration_requests.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <optional>

#include "protocol/wire/migration.h"
#include "tests/server/worker/migrating_session.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker;
using namespace gpupool::worker::test;
using server::ControlKind;
using wire::Command;
using wire::MessageKind;

namespace {

// A pair of connected sockets; the connection or the control thread gets ends[1].
struct Sockets {
  explicit Sockets(int type) { REQUIRE(::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) == 0); }
  ~Sockets() { ::close(ends[0]); }
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;
  int ends[2];
};

// The requests of a session whose client does not read, with the test as the background thread.
struct IdleClient {
  IdleClient() {
    auto connection = std::make_unique<transport::ResumableConnection>(make_carrier());
    connection->start();
    start.resumable = connection.get();
    start.connection = std::move(connection);
    start.can_migrate = true;
    start.control = &*control;
    outbox.emplace(*start.connection, counters, ledger, start.resumable);
    requests.emplace(start, *outbox);
    requests->begin();
  }
  ~IdleClient() {
    requests->end();
    ::shutdown(poold.ends[0], SHUT_RDWR);  // ends the thread of `control`
    control.reset();
    ::close(poold.ends[1]);
  }

  // Makes poold's request, and sends it to the client.
  void ask(uint64_t number) {
    REQUIRE(
        server::send_control<ControlKind::migrate>(poold.ends[0], {.number = number}, "tcp://gpu-2:9700"));
    pollfd polled{requests->descriptor(), POLLIN, 0};
    REQUIRE(::poll(&polled, 1, 20'000) == 1);
    requests->send_to_client();
    REQUIRE(unread() != 0);
  }
  // Bytes that wait for the client.
  int unread() const {
    int bytes = 0;
    REQUIRE(::ioctl(client->ends[0], FIONREAD, &bytes) == 0);
    return bytes;
  }
  void cut() { start.resumable->break_carrier({ErrorCode::lost, "the network is down"}); }
  // The client resumes, and has received this many bytes in all.
  void resume(uint64_t received) {
    (void)start.resumable->retire_carrier();
    REQUIRE(start.resumable->resume(make_carrier(), received));
  }
  // Returns the number of seconds until the connection is broken; 0: more than a hundred.
  int seconds_until_broken() {
    for (int second = 1; second <= 100; ++second) {
      requests->rouse_client();
      if (start.resumable->broken()) return second;
    }
    return 0;
  }

  std::unique_ptr<transport::Connection> make_carrier() {
    client = std::make_unique<Sockets>(SOCK_STREAM);
    auto carrier = transport::adopt_stream(client->ends[1], "client", {});
    REQUIRE(carrier);
    return std::move(*carrier);
  }
  Sockets poold{SOCK_SEQPACKET};
  std::optional<Control> control{std::in_place, poold.ends[1], nullptr};
  std::unique_ptr<Sockets> client;  // of the present carrier
  quota::SessionPage counters;
  quota::Ledger ledger{nullptr, nullptr, 0};
  SessionStart start;
  std::optional<Outbox> outbox;
  std::optional<MigrationRequests> requests;
};

}  // namespace

TEST_CASE("a request to migrate reaches the client, and its refusal poold") {
  MigratingSession session;
  for (uint64_t number = 7; number < 9; ++number) {
    session.ask(number, "tcp://gpu-2:9700");
    session.client_hears(number, "tcp://gpu-2:9700");
    CHECK(session.client->result(session.decline(number, "shared memory")) == CUDA_SUCCESS);
    session.hear_end(number, false, "shared memory");
  }
  CHECK(session.client->ask(Command::synchronize_context, {}) == CUDA_SUCCESS);
}

TEST_CASE("a migrated session ends in order without further commands") {
  MigratingSession session;
  session.ask(3, "tcp://gpu-2:9700");
  session.client_hears(3, "tcp://gpu-2:9700");
  session.client->send(Command::end_migration, bytes_of(wire::EndMigration{.number = 3, .migrated = 1}));
  session.hear_end(3, true, "");
  CHECK(session.client->receive().header.kind == MessageKind{0});  // without the client's goodbye
  CHECK(session.client->finish() == server::kWorkerOrderly);
  CHECK(session.client->end_reason.empty());
}

TEST_CASE("a client that cannot migrate its session is not asked") {
  const bool can_migrate = GENERATE(false, true);
  MigratingSession session(can_migrate, !can_migrate);
  session.ask(5, "tcp://gpu-2:9700");
  const auto message = session.hear();
  REQUIRE(message.kind == ControlKind::migration_ended);
  CHECK(message.body<server::packet::MigrationEnded>().number == 5);
  CHECK(message.body<server::packet::MigrationEnded>().migrated == 0);
  CHECK(message.payload.find(can_migrate ? "--resume-timeout" : "too old") != std::string::npos);
  CHECK(session.client->silent());
}

TEST_CASE("the client's reason is made printable and cut") {
  MigratingSession session;
  session.ask(1, "tcp://gpu-2:9700");
  session.client_hears(1, "tcp://gpu-2:9700");
  CHECK(session.client->result(session.decline(1, "\x1b[2J" + std::string(3000, 'x'))) == CUDA_SUCCESS);
  session.hear_end(1, false, "?[2J" + std::string(1017, 'x') + "...");
}

TEST_CASE("an answer to no request ends the session and poold hears nothing") {
  MigratingSession session;
  SECTION("with no request") {}
  SECTION("with an answered request") {
    session.ask(1, "tcp://gpu-2:9700");
    session.client_hears(1, "tcp://gpu-2:9700");
    session.client->result(session.decline(1, "no"));
    session.hear_end(1, false, "no");
  }
  session.client->send(Command::end_migration, bytes_of(wire::EndMigration{.number = 1, .migrated = 1}));
  CHECK(session.client->finish() == server::kWorkerSessionFailed);
  CHECK(session.client->end_reason.find("a request to migrate that was not made") != std::string::npos);
  CHECK(session.poold_hears_nothing());
}

TEST_CASE("poold hears only of the success of a migration that it has not requested") {
  MigratingSession session;
  CHECK(session.client->result(session.decline(0, "no")) == CUDA_SUCCESS);
  CHECK(session.poold_hears_nothing());
  session.client->send(Command::end_migration, bytes_of(wire::EndMigration{.migrated = 1}));
  session.hear_end(0, true, "");
}

// The client resumes its session on a connection that the control thread receives.
TEST_CASE("the control thread goes on while a client that is to migrate does not read") {
  MigratingSession session;
  session.client->create_stream(0);
  session.client->map(0, kPage);
  for (int i = 0; i < 8; ++i) session.client->copy_out(stream_handle(0), 0, kPage);
  // The executor blocks once the socket is full.
  const auto dump = [&] {
    REQUIRE(server::send_control<ControlKind::dump_wanted>(session.ends[0], {.question = 1}));
    CHECK(session.hear().kind == ControlKind::dump);
  };
  dump();
  session.ask(1, "tcp://gpu-2:9700");
  ::usleep(50'000);
  dump();
  while (true) {
    const Message message = session.client->receive();
    REQUIRE(message.header.kind != MessageKind{0});
    if (message.header.kind == MessageKind::migration_wish) break;
  }
}

TEST_CASE("a client that resumed without reading a request to migrate is roused again") {
  IdleClient idle;
  idle.ask(1);
  idle.cut();
  for (int second = 0; second < 2; ++second) idle.requests->rouse_client();
  idle.resume(0);
  CHECK(idle.unread() != 0);  // sent again
  CHECK(idle.seconds_until_broken() == 2);
  for (const int expected : {4, 8, 16, 16}) {
    idle.resume(0);
    CHECK(idle.seconds_until_broken() == expected);
  }
  // The next request gets the same attention.
  idle.resume(0);
  idle.ask(2);
  CHECK(idle.seconds_until_broken() == 2);
}

TEST_CASE("a client that has read a request to migrate keeps its connection") {
  IdleClient idle;
  SECTION("it says so when it resumes") {
    idle.ask(1);
    const uint64_t sent = idle.start.resumable->unacknowledged();
    CHECK(idle.seconds_until_broken() == 2);
    idle.resume(sent);
  }
  SECTION("it begins to migrate") {
    idle.ask(1);
    idle.requests->client_tries();
  }
  SECTION("it has answered") {
    idle.ask(1);
    CHECK(idle.requests->answered(wire::EndMigration{.number = 1}, "busy"));
  }
  SECTION("there is no request") {}
  CHECK(idle.seconds_until_broken() == 0);
}
