// What Suspensions take over from the previous program of their process (server/poold/upgrade).
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <asio/io_context.hpp>
#include <utility>

#include "protocol/peers/proof.h"
#include "protocol/wire/migration.h"
#include "server/poold/upgrade/values.h"
#include "server/poold/workers/suspensions.h"
#include "server/suspension/record_file.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::server;
using std::chrono::seconds;
using State = SuspendedSession::State;

namespace {

constexpr uint64_t kBytes = 100, kAttempt = 7;

suspension::Header header_of_test() {
  suspension::Header header;
  header.set_protocol_version(wire::kPeerProtocolVersion);
  header.set_number(3);
  header.set_session_id("0123456789abcdef");
  header.set_resume_key(std::string(32, 'k'));
  header.set_tenant("a");
  header.set_program("\xff program");
  return header;
}

// A session in memory, with values that differ from those of new sessions.
upgrade::SuspendedSession message_of_test(State state = State::suspended) {
  const auto now = std::chrono::steady_clock::now();
  upgrade::SuspendedSession session;
  session.set_number(3);
  session.set_header(header_of_test().SerializeAsString());
  session.set_file_version(suspension::RecordFormat::kVersion);
  session.set_state(static_cast<uint32_t>(state));
  session.mutable_file()->set_memory(::memfd_create("test", MFD_CLOEXEC));
  session.mutable_file()->set_bytes(kBytes);
  session.mutable_file()->set_secret(std::string(32, 's'));
  session.mutable_file()->set_owned(true);
  session.set_socket(-1);
  session.set_since_ms(1'700'000'000'000);
  session.set_resume_timeout_ms(30'000);
  session.set_last_seen(upgrade::to_ns(now - seconds(1)));
  session.set_last_attempt(kAttempt);
  session.set_over_tls(true);
  session.set_wanted(true);
  session.set_at("tcp://other:1");
  session.set_sent_away(true);
  session.set_asked(upgrade::to_ns(now - seconds(2)));
  upgrade::Client& client = *session.mutable_client();
  client.set_tenant(kDefaultTenant);
  client.set_credential(static_cast<uint32_t>(Credential::Kind::user));
  client.set_token(std::string(TokenHash{}.size(), '\0'));
  client.set_user(1000);
  client.set_process(-1);
  return session;
}

struct Parts {
  explicit Parts(SuspendedFiles::Settings files = {.memory_bytes = 1000})
      : settings{std::move(files), seconds(30)} {
    suspensions.on_event([this](std::string_view event, const auto&...) { events.emplace_back(event); });
  }
  void restore(const upgrade::SuspendedSession& session) {
    upgrade::Pool pool;
    *pool.add_suspended() = session;
    suspensions.restore(pool);
  }
  upgrade::Pool saved() const {
    upgrade::Pool pool;
    suspensions.save(pool);
    return pool;
  }
  template <class F>
  bool run_until(F&& holds) {
    const auto end = std::chrono::steady_clock::now() + seconds(20);
    while (!holds() && std::chrono::steady_clock::now() < end) {
      context.run_one_for(std::chrono::milliseconds(1));
      context.restart();
    }
    return holds();
  }
  Client returning(uint64_t attempt) const {
    const suspension::Header header = header_of_test();
    const auto proof = peers::prove_resume(header.resume_key(), wire::kReturnsLink, attempt, 0);
    Client client;
    client.session_id = header.session_id();
    client.tenant = header.tenant();
    client.resume = Client::Resume{.proof = {reinterpret_cast<const char*>(proof.data()), proof.size()},
                                   .link = wire::kReturnsLink,
                                   .attempt = attempt};
    return client;
  }

  asio::io_context context;
  const WorkerProcesses processes{};
  Workers workers{processes};
  Migrations migrations{workers};
  std::vector<Refusal> refused;
  std::vector<std::string> events;
  const Suspensions::Settings settings;
  Suspensions suspensions{
      context,
      workers,
      migrations,
      settings,
      {.assign = [](const Client&) {},
       .refuse = [this](const Client&, const Refusal& refusal) { refused.push_back(refusal); },
       .end_session = [](uint64_t, const std::string&) {},
       .new_number = [] { return uint64_t{100}; }}};
};

bool is_open(int descriptor) {
  return ::fcntl(descriptor, F_GETFD) >= 0;
}

}  // namespace

TEST_CASE("a suspended session is taken over with all that is known of it") {
  const State state = GENERATE(State::stored, State::suspended, State::restored);
  const auto before = message_of_test(state);
  Parts parts;
  parts.restore(before);
  const upgrade::Pool after = parts.saved();
  REQUIRE(after.suspended_size() == 1);
  CHECK(after.suspended(0).SerializeAsString() == before.SerializeAsString());
  CHECK(parts.suspensions.files().memory_used() == kBytes);
  CHECK(parts.suspensions.unfinished().empty());
}

TEST_CASE("the end of a session that was taken over frees its bytes and its descriptor") {
  const auto session = message_of_test();
  Parts parts;
  parts.restore(session);
  CHECK(parts.suspensions.end(3, "enough"));
  CHECK(parts.events == std::vector<std::string>{"suspended_session_dropped"});
  CHECK_FALSE(parts.suspensions.unfinished().empty());  // a thread removes the file
  CHECK(parts.run_until([&] { return parts.suspensions.unfinished().empty(); }));
  CHECK(parts.suspensions.files().memory_used() == 0);
  CHECK_FALSE(is_open(session.file().memory()));
}

TEST_CASE("an attempt to return is accepted once, also by the next program") {
  auto session = message_of_test();
  session.clear_at();
  session.clear_wanted();
  Parts parts;
  parts.restore(session);
  parts.suspensions.returns(parts.returning(kAttempt));
  REQUIRE(parts.refused.size() == 1);
  CHECK(parts.refused[0].status == control::HelloReply::DENIED);
  parts.suspensions.returns(parts.returning(kAttempt + 1));
  CHECK(parts.refused.size() == 1);  // it waits
  parts.suspensions.give_up_waiting();
  REQUIRE(parts.refused.size() == 2);
  CHECK(parts.refused[1].status == control::HelloReply::SUSPENDED);
  CHECK(parts.saved().suspended(0).last_attempt() == kAttempt + 1);
}

TEST_CASE("a session whose client has not been heard for too long is over, also after an upgrade") {
  auto session = message_of_test();
  session.clear_at();
  session.set_last_seen(upgrade::to_ns(std::chrono::steady_clock::now() - seconds(31)));
  Parts parts;
  parts.restore(session);
  CHECK(parts.run_until([&] { return parts.suspensions.empty(); }));
  CHECK(parts.events == std::vector<std::string>{"suspended_session_dropped"});
}

TEST_CASE("a session that a worker is yet to store is stored by the next program, once it begins anything") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  auto session = message_of_test(State::storing);
  ::close(session.file().memory());
  session.mutable_file()->set_memory(-1);
  session.mutable_file()->set_bytes(0);
  session.set_socket(ends[0]);
  Parts parts;
  parts.suspensions.pause();
  parts.restore(session);
  ::close(ends[1]);  // the worker's end: it has ended
  for (int look = 0; look < 50; ++look) {
    parts.context.run_for(std::chrono::milliseconds(1));
    parts.context.restart();
  }
  CHECK(parts.suspensions.unfinished().empty());
  CHECK(parts.saved().suspended(0).socket() == ends[0]);
  parts.suspensions.unpause();
  CHECK(parts.run_until([&] { return !parts.suspensions.unfinished().empty(); }));
  CHECK(parts.suspensions.unfinished().find("session 3 is being suspended") == 0);
  CHECK(parts.run_until([&] { return parts.suspensions.unfinished().empty(); }));
  CHECK_FALSE(std::as_const(parts.suspensions).find(3)->failure.empty());
  CHECK(parts.suspensions.files().memory_used() == 0);
}

TEST_CASE("nothing is suspended while poold is upgraded") {
  Parts parts;
  parts.suspensions.pause();
  const auto asked = parts.suspensions.suspend(1, {}, nullptr);
  REQUIRE_FALSE(asked);
  CHECK(asked.error().code == ErrorCode::refused);
  CHECK(asked.error().message.find("is being upgraded") != std::string::npos);
}

TEST_CASE("a program refuses suspended sessions that it could not resume") {
  auto session = message_of_test();
  CHECK(Suspensions::check(session));
  SECTION("the commands are of another version") {
    auto header = header_of_test();
    header.set_protocol_version(wire::kPeerProtocolVersion + 1);
    session.set_header(header.SerializeAsString());
  }
  SECTION("the header is no message") {
    session.set_header("\xff");
  }
  SECTION("the file is of another version") {
    session.set_file_version(suspension::RecordFormat::kVersion + 1);
  }
  SECTION("the state is unknown") {
    session.set_state(static_cast<uint32_t>(State::restored) + 1);
  }
  const auto refused = Suspensions::check(session);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message.find("session 3") == 0);
  ::close(session.file().memory());
}
