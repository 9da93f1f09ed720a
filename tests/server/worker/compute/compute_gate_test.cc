// Tests the compute gate: the turns during which work passes, how much work is kept on a shared device, and
// the estimates by which it is limited.
#include "server/worker/compute/compute_gate.h"

#include <chrono>
#include <cstdint>
#include <future>
#include <thread>

#include "server/worker/compute/compute_lane.h"
#include "tests/server/worker/compute/gated_session.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker;
using namespace gpupool::worker::test;
using namespace std::chrono_literals;

TEST_CASE("work without a turn asks for one and waits") {
  GatedSession session;
  auto result = session.work_elsewhere();
  CHECK(eventually([&] { return (*session.page)->wants_turn[0] == 1 && session.rings > 0; }));
  CHECK(session.blocks(result));
  CHECK(session.done == 0);
  session.turn(State::open, true);
  CHECK(result.get() == CUDA_SUCCESS);
  CHECK((*session.page)->wants_turn[0] == 0);
  CHECK((*session.page)->gpus[0].throttled_nanoseconds >= 20'000'000);
}

TEST_CASE("gives up the turn when its work is done") {
  GatedSession session;
  session.turn(State::open, true);
  REQUIRE(session.work() == CUDA_SUCCESS);
  session.gate->before_sleep();
  session.device.pass(1);  // begin of the piece
  session.turn(State::yield, true);
  std::this_thread::sleep_for(20ms);
  CHECK(session.word().yield());
  session.device.pass(2);
  CHECK(eventually([&] { return session.word().closed(); }));
  CHECK((*session.page)->wants_turn[0] == 0);
  CHECK(eventually([&] { return session.rings > 0; }));
  CHECK((*session.page)->gpus[0].gpu_nanoseconds == 1'000'000);
}

TEST_CASE("a turn that others want is given up when there is no work") {
  GatedSession session;
  session.turn(State::open, true);
  REQUIRE(session.work() == CUDA_SUCCESS);
  session.gate->before_sleep();
  session.device.pass(2);
  CHECK(eventually(
      [&] { return (*session.page)->gpus[0].launches == 1; }));  // the gate has noticed the end of the work
  CHECK(session.word().open());
  session.turn(State::open, true, false, true);
  CHECK(eventually([&] { return session.word().closed(); }));
}

TEST_CASE("work that waits for something else keeps neither the turn nor other work") {
  GatedSession session;
  session.turn(State::open, true);
  REQUIRE(session.work() == CUDA_SUCCESS);  // no event completes: its stream waits
  session.gate->before_sleep();
  for (int i = 0; i < 20; ++i) REQUIRE(session.work() == CUDA_SUCCESS);
  session.gate->before_sleep();
  session.turn(State::yield, true);
  CHECK(eventually([&] { return session.word().closed(); }));
}

TEST_CASE("keeps little work on a shared device") {
  GatedSession session;
  session.turn(State::open, true, true);
  REQUIRE(session.work() == CUDA_SUCCESS);
  session.device.pass(1);
  auto second = session.work_elsewhere();
  CHECK(session.blocks(second));
  session.device.pass(2);
  CHECK(second.get() == CUDA_SUCCESS);
  session.device.pass(4);
  session.turn(State::open,
               true);  // each piece takes a millisecond: two fit behind one that is expected to be done
  REQUIRE(session.work() == CUDA_SUCCESS);
  session.device.pass(5);
  REQUIRE(session.work() == CUDA_SUCCESS);
  REQUIRE(session.work() == CUDA_SUCCESS);
  auto fourth = session.work_elsewhere();
  CHECK(session.blocks(fourth));
  session.device.pass(~uint64_t{0});
  CHECK(fourth.get() == CUDA_SUCCESS);
}

TEST_CASE("a turn is given up while the last short work of a known kind runs") {
  GatedSession session;
  session.turn(State::open, true);
  REQUIRE(session.work() == CUDA_SUCCESS);  // measured: one millisecond
  session.gate->before_sleep();
  session.device.pass(2);
  CHECK(eventually([&] { return (*session.page)->gpus[0].gpu_nanoseconds == 1'000'000; }));
  REQUIRE(session.work() == CUDA_SUCCESS);
  session.gate->before_sleep();
  session.device.pass(3);  // has begun and does not end
  session.turn(State::yield, true);
  CHECK(eventually([&] { return session.word().closed(); }));
  CHECK((*session.page)->gpus[0].gpu_nanoseconds == 1'000'000);
  session.device.pass(~uint64_t{0});
  session.gate->before_sleep();
  CHECK(eventually([&] { return (*session.page)->gpus[0].gpu_nanoseconds == 2'000'000; }));
}

TEST_CASE("work that outlasts its turn does not delay the next turn") {
  GatedSession session;
  session.turn(State::open, true, true);
  REQUIRE(session.work() == CUDA_SUCCESS);
  session.gate->before_sleep();
  session.device.pass(1);
  session.turn(State::closed, true, true);
  auto result = session.work_elsewhere();
  CHECK(session.blocks(result));
  session.turn(State::open, true, true);
  CHECK(result.get() == CUDA_SUCCESS);
  session.turn(State::yield, true, true);
  session.gate->before_sleep();
  CHECK(eventually([&] { return session.word().closed(); }));
}

TEST_CASE("work that only later work can end does not block it forever") {
  GatedSession session;
  session.turn(State::open, true, true);
  REQUIRE(session.work() == CUDA_SUCCESS);
  session.device.pass(1);
  auto second = session.work_elsewhere();
  CHECK(session.blocks(second));
  CHECK(second.wait_for(20s) == std::future_status::ready);
}

TEST_CASE("the end of a session wakes waiters and gives up the turn") {
  GatedSession session;
  auto result = session.work_elsewhere();
  CHECK(eventually([&] { return (*session.page)->wants_turn[0] == 1; }));
  session.gate->stop();
  CHECK(result.get() == CUDA_ERROR_OPERATING_SYSTEM);
  CHECK((*session.page)->wants_turn[0] == 0);

  GatedSession holder;
  holder.turn(State::open, true);
  REQUIRE(holder.work() == CUDA_SUCCESS);
  holder.gate->stop();
  CHECK(eventually([&] { return holder.word().closed(); }));
}

TEST_CASE("a new shape of a known kernel is estimated by its threads") {
  Estimates estimates;
  const int functions[2] = {};
  const WorkKind known = kernel_kind(&functions[0], 100, 256), longer = kernel_kind(&functions[0], 300, 256);
  CHECK_FALSE(estimates.knows(known));
  CHECK(estimates.of(known) == Estimates::kUnknown);
  estimates.learn(known, 40'000);
  CHECK(estimates.of(known) == 40'000);
  REQUIRE(estimates.knows(longer));
  CHECK(estimates.of(longer) == Approx(120'000));
  CHECK_FALSE(estimates.knows(kernel_kind(&functions[1], 100, 256)));
  CHECK_FALSE(estimates.knows(transfer_kind(100)));
  estimates.learn(longer, 60'000);  // its own time replaces the estimate
  CHECK(estimates.of(longer) == 60'000);
  CHECK(estimates.of(known) == 40'000);
}

TEST_CASE("evicts the least recently used estimates") {
  Estimates estimates;
  const int many_shapes = 0;
  const WorkKind used = kernel_kind(&estimates, 1, 1), unused = kernel_kind(&used, 1, 1);
  estimates.learn(used, 1'000);
  estimates.learn(unused, 1'000);
  for (uint64_t i = 2; i < 2 * Estimates::kMost; ++i) {
    REQUIRE(estimates.of(used) == 1'000);
    estimates.learn(kernel_kind(&many_shapes, i, 1), 2'000);
  }
  CHECK(estimates.of(used) == 1'000);
  CHECK_FALSE(estimates.knows(unused));
}

TEST_CASE("new shapes of a known kernel share a piece beside others") {
  GatedSession session;
  session.turn(State::open, true);
  REQUIRE(session.work() == CUDA_SUCCESS);  // one millisecond for 100 blocks
  session.gate->before_sleep();
  session.device.pass(2);
  CHECK(eventually([&] { return (*session.page)->gpus[0].gpu_nanoseconds == 1'000'000; }));
  for (const unsigned blocks : {1u, 2u, 3u, 4u}) {
    REQUIRE(session.work(session.context->legacy, kernel_kind(nullptr, blocks, 32)) == CUDA_SUCCESS);
  }
  CHECK(session.device.recorded == 3);  // begin of one piece
}
