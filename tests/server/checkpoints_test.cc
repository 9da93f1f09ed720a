// Tests well-behaved and malicious clients that ask poold to lock and checkpoint processes
// (protocol/wire/checkpoint.h), over real connections.
#include <cuda.h>

#include "protocol/control/hello_exchange.h"
#include "protocol/wire/checkpoint.h"
#include "tests/server/fake_device_library.h"
#include "tests/support/catch.h"
#include "tests/support/poold_process.h"
#include "tests/support/raw_client.h"

using namespace gpupool;
using namespace gpupool::testing;
using wire::CheckpointAction;

namespace {

hello::Hello asking(const std::string& pid_space = "here") {
  hello::Hello hello = test_hello();
  hello.checkpoint = true;
  hello.pid_space = pid_space;
  return hello;
}

hello::Hello program(int64_t pid) {
  hello::Hello hello = test_hello();
  hello.pid = pid;
  hello.pid_space = "here";
  return hello;
}

struct Answer {
  wire::CheckpointAnswer head;
  std::vector<wire::ProcessSession> sessions;
};

void send(transport::Connection& connection, const wire::Preamble& preamble,
          const wire::CheckpointQuestion& question) {
  const iovec parts[] = {{const_cast<wire::Preamble*>(&preamble), sizeof preamble},
                         {const_cast<wire::CheckpointQuestion*>(&question), sizeof question}};
  REQUIRE(transport::send_all(connection, parts, transport::Clock::now() + kPatience));
}

Answer ask(transport::Connection& connection, const wire::CheckpointQuestion& question) {
  const auto deadline = transport::Clock::now() + kPatience;
  const auto receive = [&](void* to, size_t bytes) {
    REQUIRE(transport::receive_exact(connection, {static_cast<std::byte*>(to), bytes}, deadline));
  };
  wire::Preamble preamble{.length = sizeof question};
  send(connection, preamble, question);
  do receive(&preamble, sizeof preamble);
  while (preamble.length == 0);
  Answer answer;
  receive(&answer.head, sizeof answer.head);
  answer.sessions.resize(answer.head.sessions);
  REQUIRE(preamble.length == sizeof answer.head + answer.sessions.size() * sizeof(wire::ProcessSession));
  if (!answer.sessions.empty())
    receive(answer.sessions.data(), answer.sessions.size() * sizeof(wire::ProcessSession));
  return answer;
}

std::string questions(size_t count) {
  const wire::Preamble preamble{.length = sizeof(wire::CheckpointQuestion)};
  const wire::CheckpointQuestion question{.pid = 1};
  const std::string one =
      std::string(RawClient::bytes_of(preamble)) + std::string(RawClient::bytes_of(question));
  std::string all;
  for (size_t i = 0; i < count; ++i) all += one;
  return all;
}

// All answers must be "no such process", which is not an error.
void receive_answers(RawClient& client, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    wire::Preamble preamble;
    wire::CheckpointAnswer answer;
    const auto deadline = transport::Clock::now() + kPatience;
    REQUIRE(transport::receive_exact(client.connection(), std::as_writable_bytes(std::span(&preamble, 1)),
                                     deadline));
    REQUIRE(preamble.length == sizeof answer);
    REQUIRE(transport::receive_exact(client.connection(), std::as_writable_bytes(std::span(&answer, 1)),
                                     deadline));
    CHECK(answer.result == CUDA_SUCCESS);
  }
}

}  // namespace

TEST_CASE("a checkpoint client finds sessions by process ID on the same system and uses no worker") {
  PooldProcess poold(kDevice, {"--max-sessions", "2"});
  RawClient one(poold.endpoint()), other(poold.endpoint());
  one.open(program(71));
  other.open(program(72));
  RawClient client(poold.endpoint()), elsewhere(poold.endpoint());
  CHECK(client.open(asking()).session_id.empty());
  elsewhere.open(asking("there"));
  const Answer found = ask(client.connection(), {.pid = 71});
  CHECK(found.head.result == CUDA_SUCCESS);
  REQUIRE(found.sessions.size() == 1);
  CHECK(found.sessions[0].state == wire::ProcessState::running);
  CHECK(ask(client.connection(), {.pid = 73}).sessions.empty());
  CHECK(ask(elsewhere.connection(), {.pid = 71}).sessions.empty());
  const uint64_t session = found.sessions[0].session;
  for (const auto action : {CheckpointAction::lock, CheckpointAction::checkpoint, CheckpointAction::restore,
                            CheckpointAction::unlock}) {
    CHECK(ask(elsewhere.connection(), {.action = action, .pid = 71, .session = session}).head.result ==
          CUDA_ERROR_INVALID_VALUE);
    CHECK(ask(client.connection(), {.action = action, .pid = 72, .session = session}).head.result ==
          CUDA_ERROR_INVALID_VALUE);
    CHECK(ask(client.connection(), {.action = action, .pid = 71, .session = session + 99}).head.result ==
          CUDA_ERROR_INVALID_VALUE);
  }
  for (const auto action :
       {CheckpointAction::checkpoint, CheckpointAction::restore, CheckpointAction::unlock}) {
    CHECK(ask(client.connection(), {.action = action, .pid = 71, .session = session}).head.result ==
          CUDA_ERROR_ILLEGAL_STATE);
  }
}

TEST_CASE("an invalid question closes a checkpoint connection") {
  PooldProcess poold(kDevice);
  const auto ends = [&](const wire::Preamble& preamble, const wire::CheckpointQuestion& question) {
    RawClient client(poold.endpoint());
    client.open(asking());
    send(client.connection(), preamble, question);
    return client.await_end();
  };
  const wire::CheckpointQuestion good{.pid = 1};
  CHECK(ends({.magic = 1, .length = sizeof good}, good));
  CHECK(ends({.length = sizeof good - 1}, good));
  CHECK(ends({.length = 0}, good));
  CHECK(ends({.length = UINT32_MAX}, good));
  CHECK(ends({.length = sizeof good}, {.action = static_cast<CheckpointAction>(5), .pid = 1}));
  CHECK(ends({.length = sizeof good}, {.action = static_cast<CheckpointAction>(UINT32_MAX), .pid = 1}));
  RawClient silent(poold.endpoint()), next(poold.endpoint());
  silent.open(asking());
  next.open(asking());
  CHECK(ask(next.connection(), good).head.result == CUDA_SUCCESS);
}

TEST_CASE("the number of checkpoint connections per tenant is limited") {
  PooldProcess poold(kDevice);
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 64; ++i) {
    clients.push_back(std::make_unique<RawClient>(poold.endpoint()));
    clients.back()->open(asking());
  }
  RawClient late(poold.endpoint());
  late.send_hello(asking());
  CHECK(late.receive_reply().status == hello::Status::busy);
  clients.pop_back();
  CHECK(eventually([&] {
    RawClient again(poold.endpoint());
    again.send_hello(asking());
    return again.receive_reply().status == hello::Status::ok;
  }));
}

TEST_CASE("a flood of questions is held back in the client's own socket") {
  PooldProcess poold(kDevice);
  RawClient client(poold.endpoint());
  client.open(asking());
  const size_t before = resident_bytes(poold.pid());
  constexpr size_t kFlood = 96u << 20;  // far more than the sockets buffer
  const std::string block = questions(4096);
  size_t sent = 0;
  while (sent < kFlood) {
    const iovec rest{const_cast<char*>(block.data()) + sent % block.size(),
                     block.size() - sent % block.size()};
    const auto took = client.connection().send_some({&rest, 1});
    REQUIRE(took);
    sent += *took;
    if (*took != 0) continue;
    const auto ready =
        client.connection().wait(false, true, transport::Clock::now() + std::chrono::seconds(1));
    REQUIRE(ready);
    if (*ready == transport::Connection::Ready::none) break;  // poold has stopped reading
  }
  CHECK(sent < kFlood);
  CHECK(resident_bytes(poold.pid()) < before + (16u << 20));
  RawClient other(poold.endpoint());
  other.open(asking());
  CHECK(ask(other.connection(), {.pid = 1}).head.result == CUDA_SUCCESS);
}

TEST_CASE("questions sent at once are answered in order") {
  PooldProcess poold(kDevice);
  RawClient client(poold.endpoint());
  client.open(asking());
  constexpr size_t kQuestions = 100;
  client.send(questions(kQuestions));
  receive_answers(client, kQuestions);
}

TEST_CASE("all connections of a tenant together get at most 500 answers per second") {
  PooldProcess poold(kDevice);
  constexpr size_t kConnections = 10, kQuestions = 60;
  std::vector<std::unique_ptr<RawClient>> clients;
  for (size_t i = 0; i < kConnections; ++i) {
    clients.push_back(std::make_unique<RawClient>(poold.endpoint()));
    clients.back()->open(asking());
  }
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& client : clients) client->send(questions(kQuestions));
  for (const auto& client : clients) receive_answers(*client, kQuestions);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  // The first answers of each connection may come at once.
  CHECK(took.count() >= kConnections * (kQuestions - 1) / 500.0);
}
