// Tests a session that is locked, checkpointed, restored and unlocked on poold's order. The test acts as
// poold.
#include "protocol/wire/commands.h"
#include "tests/server/worker/checkpoint/checkpointed_session.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker;
using namespace gpupool::worker::test;
using wire::CheckpointAction;
using wire::Command;

TEST_CASE("a checkpoint frees device memory and quota and a restore brings them back") {
  CheckpointedSession session;
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
  CheckpointedSession session;
  CHECK(session.change(CheckpointAction::lock) == CUDA_SUCCESS);
  const uint64_t calls = (*session.page)->calls;
  session.client->send(Command::ping, {});
  CHECK(session.client->silent());
  CHECK((*session.page)->calls == calls);
  CHECK(session.change(CheckpointAction::checkpoint) == CUDA_SUCCESS);
  CHECK(session.change(CheckpointAction::restore) == CUDA_SUCCESS);
  CHECK((*session.page)->calls == calls);
  CHECK(session.change(CheckpointAction::unlock) == CUDA_SUCCESS);
  CHECK(session.client->receive().header.kind == wire::MessageKind::pong);
  CHECK(session.intact());
}

TEST_CASE("a checkpoint that fails for lack of host memory changes nothing") {
  CheckpointedSession session;
  const uint64_t before = session.charged();
  CHECK(session.change(CheckpointAction::lock) == CUDA_SUCCESS);
  CHECK(session.change(CheckpointAction::checkpoint, 4 * kPage - 1) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(session.own() == 4 * kPage);
  CHECK(session.charged() == before);
  CHECK(session.change(CheckpointAction::unlock) == CUDA_SUCCESS);
  CHECK(session.intact());
}

TEST_CASE("a restore that fails for lack of device memory can be repeated") {
  CheckpointedSession session;
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

TEST_CASE("poold can cancel a pending lock but not an acquired one") {
  CheckpointedSession session;
  TestClient* const client = &*session.client;
  CHECK(client->ask(Command::hold_stream, bytes_of(wire::HoldStream{stream_handle(0), 5})) == CUDA_SUCCESS);
  session.order(CheckpointAction::lock);
  CHECK(session.silent());  // waits for the held stream
  session.stop_locking();
  CHECK(session.answer() == CUDA_ERROR_NOT_READY);
  session.order(CheckpointAction::lock);
  client->send(Command::resume_stream, bytes_of(wire::ResumeStream{5}));
  CHECK(session.answer() == CUDA_SUCCESS);
  session.stop_locking();  // too late: not answered
  CHECK(session.change(CheckpointAction::lock) == CUDA_ERROR_ILLEGAL_STATE);
  CHECK(session.change(CheckpointAction::unlock) == CUDA_SUCCESS);
  CHECK(session.intact());
}

TEST_CASE("releases all resources of a session that ends while it is checkpointed") {
  CheckpointedSession session;
  CHECK(session.change(CheckpointAction::lock) == CUDA_SUCCESS);
  CHECK(session.change(CheckpointAction::checkpoint) == CUDA_SUCCESS);
  session.client->cut();
  session.client.reset();
  CHECK(session.charged() == 0);
  CHECK(session.gpu().memory_used == 0);
  CHECK(session.gpu().memory_checkpointed == 0);
}
