// Tests SuspendSession and ResumeSession of the admin service with a running poold, its workers, and clients
// that keep to the protocol or break it.
#include <cstring>
#include <future>
#include <optional>

#include "common/token/token.h"
#include "protocol/peers/proof.h"
#include "protocol/wire/migration.h"
#include "tests/server/fake_device_library.h"
#include "tests/server/poold/admin/admin_client.h"
#include "tests/support/has.h"
#include "tests/support/lease_maker.h"
#include "tests/support/raw_client.h"

using namespace gpupool;
using namespace gpupool::testing;
using grpc::StatusCode;
using std::chrono::milliseconds;

namespace {

const std::vector<std::string> kSuspends{"--resume-timeout", "20", "--host-memory-for-suspended-mib", "64"};

template <class Reply>
struct CallResult {
  StatusCode code;
  std::string why;  // if `code` is not OK
  Reply reply;
};

template <class Request, class Reply>
std::future<CallResult<Reply>> ask_beside(const PooldProcess& poold,
                                          grpc::Status (admin::Admin::Stub::*method)(grpc::ClientContext*,
                                                                                     const Request&, Reply*),
                                          const Request& request) {
  return std::async(std::launch::async, [&poold, method, request] {
    CallResult<Reply> answer;
    const auto status = AdminClient(poold).call(method, request, answer.reply);
    answer.code = status.error_code();
    answer.why = status.error_message();
    return answer;
  });
}

auto suspend_beside(const PooldProcess& poold, uint64_t session) {
  admin::SuspendSessionRequest request;
  request.set_session(session);
  return ask_beside(poold, &admin::Admin::Stub::SuspendSession, request);
}

auto resume_beside(const PooldProcess& poold, uint64_t session) {
  admin::ResumeSessionRequest request;
  request.set_session(session);
  return ask_beside(poold, &admin::Admin::Stub::ResumeSession, request);
}

// A client that suspends its session, and comes back.
struct SuspendingClient : RawClient {
  explicit SuspendingClient(const PooldProcess& poold, std::string token_text = "")
      : RawClient(poold.endpoint()), endpoint(poold.endpoint()), token(std::move(token_text)) {
    hello::Hello hello = test_hello();
    hello.token = token;
    hello.can_migrate = hello.can_resume = true;
    reply = open(hello);
  }
  uint64_t await_wish() {
    while (true) {
      const Message message = receive_message();
      if (message.header.kind != wire::MessageKind::migration_wish) continue;
      wire::MigrationWish wish{};
      REQUIRE(message.body.size() == sizeof wish);  // no address
      std::memcpy(&wish, message.body.data(), sizeof wish);
      return wish.number;
    }
  }
  int32_t begin() {
    wire::BeginMigration begin{};
    begin.target.copy = 1;
    return receive_reply_to(
               send_command(wire::Command::begin_migration, bytes_of(begin), 0, wire::kWantsReply))
        .header.result;
  }
  // Has the worker send everything. Returns the number of the last command.
  uint64_t leave() {
    const wire::MigrateSession body{5000, 0};
    const uint64_t sequence =
        send_command(wire::Command::migrate_session, bytes_of(body), 0, wire::kWantsReply);
    const Message reply = receive_reply_to(sequence);
    INFO(reply.body);
    REQUIRE(reply.header.result == 0);
    return sequence;
  }
  void say_farewell(uint64_t wish) {
    send_command(wire::Command::end_migration, bytes_of(wire::EndMigration{.number = wish, .migrated = 1}));
    CHECK(await_end());
  }
  hello::Hello returning(uint64_t attempt, uint32_t link = wire::kReturnsLink, std::string key = "") const {
    hello::Hello hello = test_hello();
    hello.token = token;
    hello.can_migrate = hello.can_resume = true;
    hello.session_id = reply.session_id;
    hello.bulk_link = link;
    hello.resume_attempt = attempt;
    const auto proof = peers::prove_resume(key.empty() ? reply.resume_key : key, link, attempt, 0);
    hello.resume_proof.assign(proof.begin(), proof.end());
    return hello;
  }
  // The server's answer to such a hello on a connection of its own.
  hello::HelloReply answer_to(const hello::Hello& hello) const {
    RawClient other(endpoint);
    other.send_hello(hello);
    return other.receive_reply();
  }
  const transport::Endpoint endpoint;
  const std::string token;
  hello::HelloReply reply;
};

// Suspends the client's session. Returns the number of its last command.
uint64_t suspend(const PooldProcess& poold, SuspendingClient& client) {
  auto asked = suspend_beside(poold, 1);
  const uint64_t wish = client.await_wish();
  REQUIRE(client.begin() == 0);
  const uint64_t last = client.leave();
  client.say_farewell(wish);
  const auto answer = asked.get();
  INFO(answer.why << answer.reply.reason());
  REQUIRE(answer.code == StatusCode::OK);
  REQUIRE(answer.reply.suspended());
  CHECK(answer.reply.bytes() > 0);
  return last;
}

// A session that began with the token `own` neither waits nor ends for a client with another one, whatever
// that proves.
void expect_only_with(const std::string& own, const std::string& other, const PooldProcess& poold) {
  SuspendingClient client(poold, own);
  suspend(poold, client);
  for (const uint32_t link : {wire::kReturnsLink, wire::kForgetsLink}) {
    auto stolen = client.returning(1, link);
    stolen.token = other;
    CHECK(client.answer_to(stolen).status == hello::Status::denied);
  }
  CHECK(AdminClient(poold).sessions().size() == 1);
  RawClient back(poold.endpoint());
  back.send_hello(client.returning(1));
  auto resumed = resume_beside(poold, 1);
  CHECK(back.receive_reply().status == hello::Status::ok);
  CHECK(AdminClient(poold).kill(2, "enough") == StatusCode::OK);
  CHECK_FALSE(resumed.get().reply.resumed());
}

std::vector<std::string> suspends_and(const std::vector<std::string>& more) {
  std::vector<std::string> options = kSuspends;
  options.insert(options.end(), more.begin(), more.end());
  return options;
}

}  // namespace

TEST_CASE("a client gets its suspended session back on the connection on which it waits") {
  PooldProcess poold(kDevice, kSuspends);
  SuspendingClient client(poold);
  const uint64_t last = suspend(poold, client);
  CHECK(AdminClient(poold).sessions()[0].state() == admin::Session::SUSPENDED);
  RawClient back(poold.endpoint());
  back.send_hello(client.returning(1));
  auto resumed = resume_beside(poold, 1);
  const auto reply = back.receive_reply();
  REQUIRE(reply.status == hello::Status::ok);
  CHECK(reply.session_id != client.reply.session_id);
  const Message adopted =
      back.receive_reply_to(back.send_command(wire::Command::adopt_session, "", 0, wire::kWantsReply));
  INFO(adopted.body);
  REQUIRE(adopted.header.result == 0);
  wire::AdoptedSession counted{};
  REQUIRE(adopted.body.size() == sizeof counted);
  std::memcpy(&counted, adopted.body.data(), sizeof counted);
  CHECK(counted.sequence == last);
  CHECK(AdminClient(poold).sessions().size() == 2);  // the file is kept until the client says that it goes on
  CHECK(client.answer_to(client.returning(2, wire::kForgetsLink)).status == hello::Status::suspended);
  const auto answer = resumed.get();
  INFO(answer.why << answer.reply.reason());
  REQUIRE(answer.code == StatusCode::OK);
  CHECK(answer.reply.resumed());
  CHECK(answer.reply.session() == 2);
  CHECK(eventually([&] { return AdminClient(poold).sessions().size() == 1; }));
  CHECK(AdminClient(poold).health().suspensions().memory_bytes() == 0);
}

TEST_CASE("only a client that proves the session's key waits for a suspended session") {
  PooldProcess poold(kDevice, kSuspends);
  SuspendingClient client(poold);
  CHECK(client.answer_to(client.returning(1)).status == hello::Status::denied);  // it is not suspended
  suspend(poold, client);
  CHECK(client.answer_to(client.returning(1, wire::kReturnsLink, std::string(32, 'x'))).status ==
        hello::Status::denied);
  CHECK(client.answer_to(client.returning(1, wire::kForgetsLink, std::string(32, 'x'))).status ==
        hello::Status::denied);
  RawClient first(poold.endpoint());
  first.send_hello(client.returning(5));
  CHECK(eventually([&] { return client.answer_to(client.returning(5)).status == hello::Status::denied; }));
  CHECK(client.answer_to(client.returning(4)).status == hello::Status::denied);
  RawClient second(poold.endpoint());
  second.send_hello(client.returning(6));
  CHECK(first.receive_reply().status == hello::Status::suspended);  // the later one waits in its place
  auto resumed = resume_beside(poold, 1);
  CHECK(second.receive_reply().status == hello::Status::ok);
  CHECK(AdminClient(poold).kill(2, "enough") == StatusCode::OK);
  CHECK_FALSE(resumed.get().reply.resumed());
}

TEST_CASE("another tenant gets no suspended session, even with a valid proof") {
  const TemporaryFolder folder;
  const std::string own = *make_token(), others = *make_token();
  std::string config;
  for (const auto& [name, token] : {std::pair("own", own), std::pair("other", others)})
    config += std::string("[[tenant]]\nname = \"") + name + "\"\ntokens = [\"" +
              hash_text(hash_token(token)) + "\"]\n";
  const PooldProcess poold(kDevice, suspends_and({"--config", folder.write("poold.toml", config)}));
  expect_only_with(own, others, poold);
}

TEST_CASE("another lease of the same tenant gets no suspended session, even with a valid proof") {
  LeaseMaker maker;
  const PooldProcess poold(kDevice, suspends_and(maker.options()));
  const auto gpus = AdminClient(poold).get(&admin::Admin::Stub::ListGpus, admin::ListGpusRequest()).gpus();
  const auto token = [&] { return maker.token(maker.lease({gpus[0].uuid()}, 100)); };
  const std::string own = token(), others = token();
  expect_only_with(own, others, poold);
}

TEST_CASE("a client that asks without being asked, or that lies, suspends nothing") {
  PooldProcess poold(kDevice, kSuspends);
  SuspendingClient client(poold);
  CHECK(client.begin() != 0);  // nobody has asked
  auto asked = suspend_beside(poold, 1);
  const uint64_t wish = client.await_wish();
  client.say_farewell(wish);  // but the worker has sent nothing
  const auto answer = asked.get();
  INFO(answer.why);
  CHECK((answer.code != StatusCode::OK || !answer.reply.suspended()));
  CHECK(client.answer_to(client.returning(1)).status == hello::Status::denied);
  CHECK(eventually([&] { return AdminClient(poold).sessions().empty(); }));
  CHECK(eventually([&] { return AdminClient(poold).health().suspensions().memory_bytes() == 0; }));
}

TEST_CASE("a client that declines, or that goes while its session is sent, leaves no file") {
  PooldProcess poold(kDevice, kSuspends);
  for (uint64_t session = 1; session <= 3; ++session) {
    std::optional<SuspendingClient> client(std::in_place, poold);
    auto asked = suspend_beside(poold, session);
    const uint64_t wish = client->await_wish();
    if (session > 1) REQUIRE(client->begin() == 0);
    if (session > 2) client->leave();
    const std::string reason = "no";
    const auto size = static_cast<uint32_t>(reason.size());
    client->send_command(wire::Command::end_migration,
                         std::string(RawClient::bytes_of(wire::EndMigration{.number = wish})) +
                             std::string(RawClient::bytes_of(size)) + reason);
    const auto answer = asked.get();
    INFO(answer.why << answer.reply.reason());
    CHECK(answer.code == StatusCode::OK);
    CHECK_FALSE(answer.reply.suspended());
    // A worker that has begun to send may end the file before the client's reason arrives.
    CHECK((has(answer.reply.reason(), "no") ||
           (session > 1 && has(answer.reply.reason(), "closed the connection"))));
    CHECK(eventually([&] { return AdminClient(poold).health().suspensions().memory_bytes() == 0; }));
    CHECK(AdminClient(poold).sessions().size() == 1);
    client.reset();
    CHECK(poold.await_log("session_ended", session));
  }
}

TEST_CASE("a client whose farewell is lost is known to have left when it returns") {
  PooldProcess poold(kDevice, kSuspends);
  SuspendingClient client(poold);
  auto asked = suspend_beside(poold, 1);
  client.await_wish();
  REQUIRE(client.begin() == 0);
  client.leave();
  RawClient back(poold.endpoint());
  back.send_hello(client.returning(1));
  CHECK(client.await_end() == "");  // without a reason, which it would take for the end of its session
  const auto answer = asked.get();
  CHECK(answer.reply.suspended());
  CHECK(poold.await_log("session_ended"));
  CHECK(AdminClient(poold).sessions().size() == 1);
  auto resumed = resume_beside(poold, 1);
  CHECK(back.receive_reply().status == hello::Status::ok);
  CHECK(AdminClient(poold).kill(2, "enough") == StatusCode::OK);
  CHECK_FALSE(resumed.get().reply.resumed());
}

TEST_CASE("a client that does not go on after its session was resumed gets it again") {
  PooldProcess poold(kDevice, kSuspends);
  SuspendingClient client(poold);
  suspend(poold, client);
  std::optional<RawClient> back(std::in_place, poold.endpoint());
  back->send_hello(client.returning(1));
  auto resumed = resume_beside(poold, 1);
  REQUIRE(back->receive_reply().status == hello::Status::ok);
  REQUIRE(back->receive_reply_to(back->send_command(wire::Command::adopt_session, "", 0, wire::kWantsReply))
              .header.result == 0);
  RawClient again(poold.endpoint());
  again.send_hello(client.returning(2));
  CHECK_FALSE(resumed.get().reply.resumed());
  CHECK(poold.await_log("session_ended", 2));  // the copy that nobody uses
  auto second = resume_beside(poold, 1);
  REQUIRE(again.receive_reply().status == hello::Status::ok);
  REQUIRE(again.receive_reply_to(again.send_command(wire::Command::adopt_session, "", 0, wire::kWantsReply))
              .header.result == 0);
  client.answer_to(client.returning(3, wire::kForgetsLink));
  CHECK(second.get().reply.resumed());
}
