// Tests how the compute gate measures GPU time: with events, by sampling, and where streams overlap or wait.
#include <chrono>
#include <cstdint>
#include <thread>

#include "server/worker/compute/compute_lane.h"
#include "server/worker/session/contexts.h"
#include "server/worker/session/stream_gates.h"
#include "tests/server/worker/compute/gated_session.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker;
using namespace gpupool::worker::test;
using namespace std::chrono_literals;

namespace {

const WorkKind kFill = transfer_kind(1 << 20);

}  // namespace

TEST_CASE("an unlimited session that is alone never waits and is measured completely") {
  GatedSession session;
  session.turn(State::open, false);
  for (int i = 0; i < 5000; ++i) REQUIRE(session.work() == CUDA_SUCCESS);
  CHECK(session.work(session.context->legacy, kFill) == CUDA_SUCCESS);
  session.gate->before_sleep();
  CHECK(session.device.recorded < 30);  // two events measure many pieces
  session.device.pass(~uint64_t{0});
  session.gate->before_sleep();
  CHECK((*session.page)->gpus[0].launches == 5000);
  CHECK((*session.page)->gpus[0].gpu_nanoseconds >= 1'000'000);
  CHECK((*session.page)->gpus[0].throttled_nanoseconds == 0);
}

TEST_CASE("alone, a session that sleeps after each launch has few events recorded") {
  GatedSession session;
  session.turn(State::open, false);
  session.device.pass(~uint64_t{0});
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 20'000; ++i) {
    REQUIRE(session.work() == CUDA_SUCCESS);
    session.gate->before_sleep();
  }
  const auto spans = static_cast<uint64_t>((std::chrono::steady_clock::now() - begin) / 10ms + 1);
  CHECK(session.device.recorded <= 2 * 33 + 3 * spans);
  CHECK((*session.page)->gpus[0].launches == 20'000);
}

TEST_CASE("the first pieces of a session that is alone are measured") {
  GatedSession session;
  session.turn(State::open, false);
  session.device.pass(~uint64_t{0});
  for (int i = 0; i < 30; ++i) {
    REQUIRE(session.work() == CUDA_SUCCESS);
    session.gate->before_sleep();
  }
  CHECK(session.gpu_time() == 30ms);
}

TEST_CASE("the GPU time of work without events is sampled") {
  const int busy = GENERATE(0, 5, 10);
  GatedSession session;
  session.device.event_milliseconds = 0;
  session.sleep_often();
  session.device.pass(~uint64_t{0});
  session.device.busy_tenths = busy;
  const auto before = session.gpu_time();
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < 600ms) {
    REQUIRE(session.work() == CUDA_SUCCESS);
    session.gate->before_sleep();
    std::this_thread::sleep_for(300us);
  }
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin,
                                      counted = session.gpu_time() - before;
  const double expected = passed.count() * busy / 10;
  CHECK(counted.count() >= expected * (busy == 10 ? 0.85 : 0.5));
  CHECK(counted.count() <= expected * (busy == 10 ? 1.15 : 1.5));
  session.device.busy_tenths = 0;
  std::this_thread::sleep_for(20ms);
  const int queries = session.device.queries;
  std::this_thread::sleep_for(50ms);
  CHECK(session.device.queries == queries);  // no queries once found idle
}

TEST_CASE("streams whose work is sampled at the same time are counted once") {
  GatedSession session;
  session.device.event_milliseconds = 0;
  session.sleep_often();
  StreamState other;
  other.context = session.context;
  other.stream = reinterpret_cast<CUstream>(7);
  session.device.busy_tenths = 10;
  const auto begin = std::chrono::steady_clock::now();
  const auto before = session.gpu_time();
  REQUIRE(session.work() == CUDA_SUCCESS);
  REQUIRE(session.work(other) == CUDA_SUCCESS);
  session.gate->before_sleep();
  CHECK(eventually([&] { return session.gpu_time() - before >= 100ms; }));
  CHECK(std::chrono::steady_clock::now() - begin >= 90ms);
  session.gate->before_stream_destroyed(other);
}

TEST_CASE("a sampled piece that ends at a gate is sampled until the device is done with it") {
  GatedSession session;
  session.device.event_milliseconds = 0;
  session.sleep_often();
  const uint64_t recorded = session.device.recorded;
  REQUIRE(session.work() == CUDA_SUCCESS);
  CHECK(session.device.recorded == recorded);
  session.gate->pause(session.context->legacy);
  CHECK(session.device.recorded == recorded + 1);
  const auto before = session.gpu_time();
  CHECK(eventually([&] { return session.gpu_time() - before >= 30ms; }));
  session.device.pass(recorded + 1);
  std::this_thread::sleep_for(20ms);
  const auto after = session.gpu_time();
  std::this_thread::sleep_for(30ms);
  CHECK(session.gpu_time() == after);
}

TEST_CASE("measures work behind a wait because the stream is not idle during it") {
  GatedSession session;
  session.sleep_often();
  session.gate->pause(session.context->legacy);
  session.device.pass(session.device.recorded);  // the sampled piece, if any
  session.gate->before_sleep();
  const auto before = session.gpu_time();
  uint64_t recorded = session.device.recorded;
  session.device.busy_tenths = 10;
  REQUIRE(session.work() == CUDA_SUCCESS);
  CHECK(session.device.recorded == recorded + 1);
  session.gate->before_sleep();
  std::this_thread::sleep_for(50ms);
  CHECK(session.gpu_time() == before);
  recorded = session.device.recorded;
  session.device.pass(recorded);
  CHECK(eventually([&] { return session.gpu_time() == before + 1ms; }));
  for (int i = 0; i < 1000; ++i) {
    REQUIRE(session.work() == CUDA_SUCCESS);
    session.gate->before_sleep();
    session.device.pass(session.device.recorded);
  }
  CHECK(session.device.recorded < recorded + 2 * 1000);  // sampled again
}

TEST_CASE("sampled work holds the turn that others want until it is done") {
  GatedSession session;
  session.sleep_often();
  const uint64_t recorded = session.device.recorded;
  session.device.busy_tenths = 10;
  REQUIRE(session.work() == CUDA_SUCCESS);
  session.gate->before_sleep();
  CHECK(session.device.recorded == recorded);
  session.turn(State::yield, true);
  CHECK(eventually([&] { return session.wakes > 0; }));
  CHECK(session.word().yield());
  session.gate->before_sleep();
  CHECK(session.device.recorded == recorded + 1);
  std::this_thread::sleep_for(20ms);
  CHECK(session.word().yield());
  session.device.pass(recorded + 1);
  CHECK(eventually([&] { return session.word().closed(); }));
}

TEST_CASE("a turn that others want is given up when sampled work is seen to be done") {
  GatedSession session;
  session.sleep_often();
  const uint64_t recorded = session.device.recorded;
  REQUIRE(session.work() == CUDA_SUCCESS);
  session.gate->before_sleep();
  session.turn(State::yield, true);
  CHECK(eventually([&] { return session.word().closed(); }));
  CHECK(session.device.recorded == recorded);
}

TEST_CASE("measures every piece beside other sessions even after sampled pieces") {
  GatedSession session;
  session.sleep_often();
  session.device.busy_tenths = 10;
  REQUIRE(session.work() == CUDA_SUCCESS);
  session.gate->before_sleep();
  const uint64_t recorded = session.device.recorded;
  session.turn(State::open, true);
  REQUIRE(session.work() == CUDA_SUCCESS);
  session.gate->before_sleep();
  CHECK(session.device.recorded == recorded + 3);  // end of the sampled piece; begin and end of the new one
}

TEST_CASE("the legacy stream of a green context is always measured") {
  GatedSession session;
  session.context->green = &session;
  session.sleep_often();
  CHECK(session.device.recorded == 80);
  session.context->green = nullptr;
}

TEST_CASE("streams that work at the same time are counted once") {
  GatedSession session;
  session.turn(State::open, false);
  StreamState other;
  other.context = session.context;
  other.stream = reinterpret_cast<CUstream>(7);
  REQUIRE(session.work(session.context->legacy) == CUDA_SUCCESS);
  REQUIRE(session.work(other) == CUDA_SUCCESS);
  session.gate->before_sleep();  // events 1 and 2 begin the pieces; 3 and 4 end them in either order
  session.device.pass(~uint64_t{0});
  session.gate->before_sleep();
  CHECK((*session.page)->gpus[0].gpu_nanoseconds <= 3'000'000);
  session.gate->before_stream_destroyed(other);
}

TEST_CASE("the time in which a stream waits for the client is not counted") {
  GatedSession session;
  StreamGates gates(
      session.contexts, [] {}, [&](StreamState& stream) { session.gate->pause(stream); });
  session.turn(State::open, false);
  REQUIRE(session.work() == CUDA_SUCCESS);
  const auto gate = gates.close(session.context->legacy, 1, "the test");
  CHECK(session.device.recorded == 2);  // end of the piece
  session.device.recorded += 100;       // 100 ms pass
  gate->open();
  CHECK(gates.settle());
  REQUIRE(session.work() == CUDA_SUCCESS);
  session.gate->before_sleep();
  session.device.pass(104);
  session.gate->before_sleep();
  CHECK((*session.page)->gpus[0].gpu_nanoseconds == 2'000'000);
}
