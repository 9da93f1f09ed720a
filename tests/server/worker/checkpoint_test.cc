// A session is locked, checkpointed, restored and unlocked when poold says so. The test plays poold.
#include <sys/socket.h>
#include <unistd.h>

#include "protocol/wire/commands.h"
#include "server/quota/accounts.h"
#include "server/quota/turn_word.h"
#include "tests/server/worker/test_client.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker;
using namespace gpupool::worker::test;
using server::ControlHeader;
using server::ControlKind;
using wire::CheckpointAction;
using wire::Command;

namespace {

constexpr uint64_t kPage = FakeDriver::kGranularity;

// A session that has four mappings of a page, full of a pattern, and does nothing.
struct Session {
  Session() {
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    const timeval patience{10, 0};
    ::setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    control = std::make_unique<Control>(ends[1], nullptr);
    place = std::move(*accounts.take("t"));
    page = *quota::SharedPage<quota::SessionPage>::create("session");
    (*page)->turns[0] = quota::TurnWord::of({.state = quota::Arbiter::Turn::State::open}, 1).word;
    client.emplace(false, control.get(), 0, false, nullptr, false, Usage{page, *accounts.of("t"), place->slot()}, [](FakeDriver& fake) {
      fake.zeroes_memory = false;  // so that what is not brought back is not there
    });
    client->retain();
    client->create_stream(0);
    for (uint64_t i = 0; i < 4; ++i) {
      client->map(i * kPage, kPage);
      REQUIRE(client->result(client->copy_in(0, i * kPage, content(i), true)) == CUDA_SUCCESS);
    }
    REQUIRE(client->ask(Command::synchronize_context, {}) == CUDA_SUCCESS);
  }
  ~Session() {
    client.reset();
    control.reset();
    for (const int end : ends) ::close(end);
  }
  std::vector<std::byte> content(uint64_t i) { return pattern(kPage, static_cast<unsigned>(i) + 1); }
  bool intact() {
    for (uint64_t i = 0; i < 4; ++i) {
      if (client->data(client->copy_out(stream_handle(0), i * kPage, kPage)) != content(i)) return false;
    }
    return true;
  }
  quota::SessionPage::Gpu& gpu() { return (*page)->gpus[0]; }
  uint64_t charged() { return (**accounts.of("t"))->sessions[place->slot()].memory_used[0]; }
  uint64_t own() { return client->fake.used() - others; }

  void order(CheckpointAction action, uint64_t most = UINT64_MAX) {
    ControlHeader header{.kind = ControlKind::change_state};
    header.memory_most = most;
    header.state_question = ++question;
    header.state_action = action;
    REQUIRE(server::send_control(ends[0], header, "", -1));
  }
  void stop_locking() {
    ControlHeader header{.kind = ControlKind::stop_locking};
    header.state_question = question;
    REQUIRE(server::send_control(ends[0], header, "", -1));
  }
  int answer() {
    while (true) {
      const auto message = server::receive_control(ends[0]);
      REQUIRE(message);
      if (message->header.kind == ControlKind::turn) continue;
      if (message->header.kind == ControlKind::room_wanted) {  // nobody makes any
        ControlHeader header{.kind = ControlKind::room_patience};
        header.memory_question = message->header.memory_question;
        REQUIRE(server::send_control(ends[0], header, "", -1));
        continue;
      }
      REQUIRE(message->header.kind == ControlKind::state_changed);
      REQUIRE(message->header.state_question == question);
      return message->header.state_result;
    }
  }
  int change(CheckpointAction action, uint64_t most = UINT64_MAX) {
    order(action, most);
    return answer();
  }
  // Others take what the device has left, but for this.
  void leave_free(uint64_t bytes) {
    client->fake.locked([&] { others = FakeDriver::kMemory - client->fake.memory_used - bytes, client->fake.memory_used += others; });
  }
  void others_go() {
    client->fake.locked([&] { client->fake.memory_used -= std::exchange(others, 0); });
  }

  int ends[2];
  quota::Accounts accounts;
  std::unique_ptr<Control> control;
  std::unique_ptr<quota::Accounts::Place> place;
  std::shared_ptr<quota::SharedPage<quota::SessionPage>> page;
  std::optional<TestClient> client;
  uint64_t others = 0;
  uint64_t question = 0;
};

}  // namespace

TEST_CASE("a checkpointed session has nothing on the device and in its quota, and has all of it afterwards") {
  Session session;
  const uint64_t before = session.charged();
  CHECK(session.change(CheckpointAction::lock) == CUDA_SUCCESS);
  CHECK(session.own() == 4 * kPage);
  CHECK(session.change(CheckpointAction::checkpoint) == CUDA_SUCCESS);
  CHECK(session.own() == 0);
  CHECK(session.charged() == before - 4 * kPage);
  CHECK(session.gpu().memory_checkpointed == 4 * kPage);
  CHECK(session.gpu().memory_movable == 0);
  CHECK(session.gpu().memory_in_host == 0);
  CHECK(session.change(CheckpointAction::restore) == CUDA_SUCCESS);
  CHECK(session.own() == 4 * kPage);
  CHECK(session.charged() == before);
  CHECK(session.gpu().memory_checkpointed == 0);
  CHECK(session.gpu().memory_movable == 4 * kPage);
  CHECK(session.change(CheckpointAction::unlock) == CUDA_SUCCESS);
  CHECK(session.intact());
}

TEST_CASE("no command is executed while the session is locked") {
  Session session;
  CHECK(session.change(CheckpointAction::lock) == CUDA_SUCCESS);
  const uint64_t calls = (*session.page)->calls;
  session.client->send(Command::ping, {});
  ::usleep(50'000);
  CHECK((*session.page)->calls == calls);
  CHECK(session.change(CheckpointAction::checkpoint) == CUDA_SUCCESS);
  CHECK(session.change(CheckpointAction::restore) == CUDA_SUCCESS);
  CHECK((*session.page)->calls == calls);
  CHECK(session.change(CheckpointAction::unlock) == CUDA_SUCCESS);
  CHECK(session.client->receive().header.kind == wire::MessageKind::pong);
  CHECK(session.intact());
}

TEST_CASE("without host memory a checkpoint leaves the session as it was") {
  Session session;
  const uint64_t before = session.charged();
  CHECK(session.change(CheckpointAction::lock) == CUDA_SUCCESS);
  CHECK(session.change(CheckpointAction::checkpoint, 4 * kPage - 1) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(session.own() == 4 * kPage);
  CHECK(session.charged() == before);
  CHECK(session.change(CheckpointAction::unlock) == CUDA_SUCCESS);
  CHECK(session.intact());
}

TEST_CASE("a restore that finds no room changes nothing and can be tried again") {
  Session session;
  const uint64_t before = session.charged();
  CHECK(session.change(CheckpointAction::lock) == CUDA_SUCCESS);
  CHECK(session.change(CheckpointAction::checkpoint) == CUDA_SUCCESS);
  const uint64_t without = session.charged();
  SECTION("on the device") {
    session.leave_free(2 * kPage);
    CHECK(session.change(CheckpointAction::restore) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(session.own() == 0);
    CHECK(session.charged() == without);
    session.others_go();
  }
  SECTION("in the quota") {
    auto& account = **session.accounts.of("t");
    account->memory_limit[0] = without + 2 * kPage;
    CHECK(session.change(CheckpointAction::restore) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(session.own() == 0);
    CHECK(session.charged() == without);
    account->memory_limit[0] = 0;
  }
  CHECK(session.change(CheckpointAction::restore) == CUDA_SUCCESS);
  CHECK(session.charged() == before);
  CHECK(session.change(CheckpointAction::unlock) == CUDA_SUCCESS);
  CHECK(session.intact());
}

TEST_CASE("a lock that waits is given up when poold says so, and one that is there is not") {
  Session session;
  TestClient* const client = &*session.client;
  client->send(Command::hold_stream, bytes_of(wire::HoldStream{stream_handle(0), 5}));
  CHECK(client->receive().header.kind == wire::MessageKind::host_callback);
  session.order(CheckpointAction::lock);
  ::usleep(30'000);
  session.stop_locking();
  CHECK(session.answer() == CUDA_ERROR_NOT_READY);
  session.order(CheckpointAction::lock);
  client->send(Command::resume_stream, bytes_of(wire::ResumeStream{5}));
  CHECK(session.answer() == CUDA_SUCCESS);
  session.stop_locking();  // too late: nothing is said
  CHECK(session.change(CheckpointAction::lock) == CUDA_ERROR_ILLEGAL_STATE);
  CHECK(session.change(CheckpointAction::unlock) == CUDA_SUCCESS);
  CHECK(session.intact());
}

TEST_CASE("a session that ends while it is checkpointed gives back what it still has") {
  Session session;
  CHECK(session.change(CheckpointAction::lock) == CUDA_SUCCESS);
  CHECK(session.change(CheckpointAction::checkpoint) == CUDA_SUCCESS);
  session.client->cut();
  session.client.reset();
  CHECK(session.charged() == 0);
  CHECK(session.gpu().memory_used == 0);
  CHECK(session.gpu().memory_checkpointed == 0);
}
