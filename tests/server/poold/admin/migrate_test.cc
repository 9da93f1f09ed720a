// Tests MigrateSession of the admin service with a running poold, its worker, and a client that answers.
#include <signal.h>

#include <cstring>
#include <fstream>
#include <future>
#include <thread>

#include "protocol/wire/migration.h"
#include "tests/server/fake_device_library.h"
#include "tests/server/poold/admin/admin_client.h"
#include "tests/support/has.h"
#include "tests/support/http_get.h"
#include "tests/support/raw_client.h"

using namespace gpupool;
using namespace gpupool::testing;
using grpc::StatusCode;
using std::chrono::milliseconds;

namespace {

const std::string kTarget = "tcp://gpu-2.example:9700";

struct Answer {
  StatusCode code;
  std::string why;  // if `code` is not OK
  admin::MigrateSessionReply reply;
};

Answer migrate(const PooldProcess& poold, uint64_t session, const std::string& to = kTarget,
               milliseconds patience = milliseconds(60'000)) {
  AdminClient client(poold);
  admin::MigrateSessionRequest request;
  request.set_session(session);
  request.set_to(to);
  Answer answer;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + patience);
  const auto status = client.stub().MigrateSession(&context, request, &answer.reply);
  answer.code = status.error_code();
  answer.why = status.error_message();
  return answer;
}

std::future<Answer> migrate_beside(const PooldProcess& poold, uint64_t session) {
  return std::async(std::launch::async, [&poold, session] { return migrate(poold, session); });
}

// A client that can migrate its session. What the worker sends is kept until both sides end.
struct MigratingClient : RawClient {
  explicit MigratingClient(const PooldProcess& poold, bool can_migrate = true, bool can_resume = true)
      : RawClient(poold.endpoint()) {
    hello::Hello hello = test_hello();
    hello.can_migrate = can_migrate;
    hello.can_resume = can_resume;
    open(hello);
  }
  // Returns the next request to migrate and checks its address.
  uint64_t await_wish(const std::string& to = kTarget) {
    while (true) {
      const Message message = receive_message();
      if (message.header.kind != wire::MessageKind::migration_wish) continue;
      wire::MigrationWish wish{};
      REQUIRE(message.body.size() == sizeof wish + to.size());
      std::memcpy(&wish, message.body.data(), sizeof wish);
      CHECK(message.body.substr(sizeof wish) == to);
      return wish.number;
    }
  }
  void has_migrated(uint64_t number) {
    send_command(wire::Command::end_migration, bytes_of(wire::EndMigration{.number = number, .migrated = 1}));
  }
  void has_not_migrated(uint64_t number, const std::string& reason) {
    const auto size = static_cast<uint32_t>(reason.size());
    send_command(wire::Command::end_migration, std::string(bytes_of(wire::EndMigration{.number = number})) +
                                                   std::string(bytes_of(size)) + reason);
  }
};

const std::vector<std::string> kResumes{"--resume-timeout", "20"};

}  // namespace

TEST_CASE("a migrated session ends with its new address as the reason") {
  const TemporaryFolder folder;
  const std::string audit = folder.path() / "audit";
  PooldProcess poold(kDevice, {"--resume-timeout", "20", "--audit-file", audit, "--metrics", "127.0.0.1:0"});
  MigratingClient client(poold);
  auto asked = migrate_beside(poold, 1);
  client.has_migrated(client.await_wish());
  CHECK(client.await_end());
  const Answer answer = asked.get();
  INFO(answer.why);
  REQUIRE(answer.code == StatusCode::OK);
  CHECK(answer.reply.migrated());
  CHECK(answer.reply.reason().empty());
  CHECK(answer.reply.milliseconds() < 60'000);
  REQUIRE(poold.await_log("session_ended"));
  const std::string log = poold.log();
  CHECK(has(log.substr(log.find("session_ended")), "reason=\"migrated to " + kTarget + "\""));
  CHECK_FALSE(has(log, "client_gone"));
  CHECK(has(http_get(metrics_port(log), "/metrics"),
            "\ngpupool_migrations_ended_total{result=\"migrated\"} 1\n"));
  CHECK(poold.stop() == 0);
  std::ifstream file(audit);
  const std::string records{std::istreambuf_iterator<char>(file), {}};
  INFO(records);
  CHECK(has(records, "\"does\":\"migrate\",\"on\":\"1\",\"how\":\"to " + kTarget + "\""));
  CHECK(has(records, "\"migration_ended\""));
  CHECK(has(records, "\"result\":\"migrated\""));
  CHECK(has(records, "\"reason\":\"migrated to " + kTarget + "\""));
}

TEST_CASE("a session whose client declines goes on, and can be asked again") {
  PooldProcess poold(kDevice, kResumes);
  MigratingClient client(poold);
  for (const auto& [said, told] : std::vector<std::pair<std::string, std::string>>{
           {"it shares\nmemory\x1b", "it shares?memory?"},
           {std::string(5000, 'x'), std::string(1021, 'x') + "..."},
           {"", ""}}) {
    auto asked = migrate_beside(poold, 1);
    client.has_not_migrated(client.await_wish(), said);
    const Answer answer = asked.get();
    INFO(answer.why);
    REQUIRE(answer.code == StatusCode::OK);
    CHECK_FALSE(answer.reply.migrated());
    CHECK(answer.reply.reason() == told);
  }
  client.ping();
  CHECK(AdminClient(poold).health().migrations().failed() == 3);
}

TEST_CASE("a session that cannot migrate is answered at once with the reason") {
  const bool can_migrate = GENERATE(false, true);
  PooldProcess poold(kDevice, can_migrate ? std::vector<std::string>{"--resume-timeout", "0"} : kResumes);
  MigratingClient client(poold, can_migrate);
  const Answer answer = migrate(poold, 1);
  INFO(answer.why);
  REQUIRE(answer.code == StatusCode::OK);
  CHECK_FALSE(answer.reply.migrated());
  CHECK(has(answer.reply.reason(), can_migrate ? "--resume-timeout" : "too old"));
  client.ping();
}

TEST_CASE("a request for no session or an invalid address is rejected") {
  PooldProcess poold(kDevice, kResumes);
  MigratingClient client(poold);
  CHECK(migrate(poold, 99).code == StatusCode::NOT_FOUND);
  CHECK(migrate(poold, 1, "").code == StatusCode::INVALID_ARGUMENT);
  CHECK(migrate(poold, 1, std::string(1025, 'x')).code == StatusCode::INVALID_ARGUMENT);
  CHECK(migrate(poold, 1, "tcp://gpu-2\n:9700").code == StatusCode::INVALID_ARGUMENT);
  const std::string longest(1024, 'x');
  auto asked = std::async(std::launch::async, [&] { return migrate(poold, 1, longest); });
  client.has_not_migrated(client.await_wish(longest), "no");
  CHECK(asked.get().reply.reason() == "no");
}

TEST_CASE("a request stays open when its caller has left, and a second one is rejected meanwhile") {
  PooldProcess poold(kDevice, kResumes);
  MigratingClient client(poold);
  CHECK(migrate(poold, 1, kTarget, milliseconds(300)).code == StatusCode::DEADLINE_EXCEEDED);
  const Answer second = migrate(poold, 1, "tcp://other:1");
  CHECK(second.code == StatusCode::ALREADY_EXISTS);
  CHECK(has(second.why, kTarget));
  client.has_not_migrated(client.await_wish(), "too late");
  CHECK(poold.await_log("migration_ended"));
  auto asked = migrate_beside(poold, 1);
  client.has_not_migrated(client.await_wish(), "in time");
  CHECK(asked.get().reply.reason() == "in time");
}

TEST_CASE("a session that ends without an answer fails its request with the reason") {
  PooldProcess poold(kDevice, kResumes);
  MigratingClient client(poold);
  auto asked = migrate_beside(poold, 1);
  client.await_wish();
  CHECK(AdminClient(poold).kill(1, "enough") == StatusCode::OK);
  const Answer answer = asked.get();
  CHECK(answer.code == StatusCode::FAILED_PRECONDITION);
  CHECK(has(answer.why, "ended by an administrator: enough"));
  CHECK(AdminClient(poold).health().migrations().lost() == 1);
}

TEST_CASE("an answer that poold reads after the exit of its worker counts") {
  PooldProcess poold(kDevice, kResumes, {{"FAKE_DEVICE", "hostile:turns"}});
  for (uint64_t session = 1; session <= 3; ++session) {
    MigratingClient client(poold);
    const auto worker = static_cast<pid_t>(AdminClient(poold).sessions()[0].worker_pid());
    auto asked = migrate_beside(poold, session);
    const uint64_t number = client.await_wish();
    stop(poold.pid());
    REQUIRE(::kill(worker, SIGUSR1) ==
            0);  // poold reads one message at a time, so it learns of the exit first
    std::this_thread::sleep_for(milliseconds(50));
    client.has_migrated(number);
    CHECK(client.await_end());
    // A process that poold has not waited for stays as a zombie.
    CHECK(eventually([&] {
      std::ifstream file("/proc/" + std::to_string(worker) + "/stat");
      const std::string stat{std::istreambuf_iterator<char>(file), {}};
      return has(stat, ") Z");
    }));
    REQUIRE(::kill(poold.pid(), SIGCONT) == 0);
    const Answer answer = asked.get();
    INFO(answer.why);
    CHECK(answer.reply.migrated());
    CHECK(poold.await_log("reason=\"migrated to " + kTarget, session));
  }
}

TEST_CASE("a client that migrates by itself ends its session as migrated") {
  PooldProcess poold(kDevice, kResumes);
  {
    MigratingClient client(poold);
    client.has_not_migrated(0, "it could not");  // poold is not told
    client.ping();
    client.has_migrated(0);
    CHECK(client.await_end());
  }
  CHECK(poold.await_log("reason=\"migrated at its client's wish\""));
  CHECK(AdminClient(poold).health().migrations().migrated() == 1);
  CHECK(AdminClient(poold).health().migrations().failed() == 0);
}

TEST_CASE("a client that answers a request that was not made loses its session") {
  PooldProcess poold(kDevice, kResumes);
  MigratingClient client(poold);
  client.has_migrated(1);
  const auto end = client.await_end();
  REQUIRE(end);
  CHECK(has(*end, "a request to migrate that was not made"));
  CHECK(poold.await_log("session_ended"));
  CHECK_FALSE(has(poold.log(), "worker_ended_by_poold"));
}
