// Tests how a session passes poold's request to migrate to its client, and the answer back.
#include "server/worker/session/migration_requests.h"

#include "protocol/wire/migration.h"
#include "tests/server/worker/migrating_session.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker;
using namespace gpupool::worker::test;
using server::ControlKind;
using wire::Command;
using wire::MessageKind;

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
