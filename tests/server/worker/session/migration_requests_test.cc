// Tests how a session passes poold's request to migrate to its client, and the answer back.
#include "server/worker/session/migration_requests.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "protocol/wire/migration.h"
#include "tests/server/worker/pooled_session.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker;
using namespace gpupool::worker::test;
using server::ControlKind;
using wire::Command;
using wire::MessageKind;

namespace {

// A session that its client can resume, and whose poold is the test.
struct MigratingSession {
  explicit MigratingSession(bool can_migrate = true, bool resumable = true) {
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    const timeval patience{20, 0};
    ::setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    control = std::make_unique<Control>(ends[1], nullptr);
    client.emplace(
        false, control.get(), 0, false, nullptr, false, Usage{}, nullptr, [&](SessionStart& start) {
          start.can_migrate = can_migrate;
          if (!resumable) return;
          auto connection = std::make_unique<transport::ResumableConnection>(std::move(start.connection));
          connection->start();
          start.resumable = connection.get();
          start.resume.timeout = std::chrono::milliseconds(100);
          start.connection = std::move(connection);
        });
    client->retain();
  }
  ~MigratingSession() {
    client.reset();
    control.reset();
    for (const int end : ends) ::close(end);
  }

  void ask(uint64_t number, const std::string& to) {
    REQUIRE(server::send_control<ControlKind::migrate>(ends[0], {.number = number}, to));
  }
  server::ControlMessage hear() {
    auto message = server::receive_control(ends[0]);
    REQUIRE(message);
    return *message;
  }
  void hear_end(uint64_t number, bool migrated, const std::string& reason) {
    const auto message = hear();
    REQUIRE(message.kind == ControlKind::migration_ended);
    const auto ended = message.body<server::packet::MigrationEnded>();
    CHECK(ended.number == number);
    CHECK(ended.migrated == (migrated ? 1u : 0u));
    CHECK(message.payload == reason);
  }
  bool poold_hears_nothing() {
    pollfd polled{ends[0], POLLIN, 0};
    return ::poll(&polled, 1, 50) == 0;
  }
  void client_hears(uint64_t number, const std::string& to) {
    const Message message = client->receive();
    REQUIRE(message.header.kind == MessageKind::migration_wish);
    CHECK(message.as<wire::MigrationWish>().number == number);
    CHECK(message.text().substr(sizeof(wire::MigrationWish)) == to);
  }
  uint64_t decline(uint64_t number, const std::string& reason) {
    wire::Buffer body = bytes_of(wire::EndMigration{.number = number});
    wire::Writer(body).put_text(reason);
    return client->send(Command::end_migration, body, true);
  }

  int ends[2];
  std::unique_ptr<Control> control;
  std::optional<TestClient> client;
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
