// A session that migrates, or does not, with the test as its client and as poold. On the test's thread.
#pragma once
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>

#include "protocol/wire/migration.h"
#include "tests/server/worker/pooled_session.h"
#include "tests/support/catch.h"

namespace gpupool::worker::test {

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

  // `file`: of a request to suspend the session; the caller keeps it.
  void ask(uint64_t number, const std::string& to, int file = -1) {
    REQUIRE(server::send_control<server::ControlKind::migrate>(ends[0], {.number = number}, to, file));
  }
  server::ControlMessage hear() {
    auto message = server::receive_control(ends[0]);
    REQUIRE(message);
    return *message;
  }
  void hear_end(uint64_t number, bool migrated, const std::string& reason) {
    const auto message = hear();
    REQUIRE(message.kind == server::ControlKind::migration_ended);
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
    REQUIRE(message.header.kind == wire::MessageKind::migration_wish);
    CHECK(message.as<wire::MigrationWish>().number == number);
    CHECK(message.text().substr(sizeof(wire::MigrationWish)) == to);
  }
  uint64_t decline(uint64_t number, const std::string& reason) {
    wire::Buffer body = bytes_of(wire::EndMigration{.number = number});
    wire::Writer(body).put_text(reason);
    return client->send(wire::Command::end_migration, body, true);
  }

  int ends[2];
  std::unique_ptr<Control> control;
  std::optional<TestClient> client;
};

}  // namespace gpupool::worker::test
