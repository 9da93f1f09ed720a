// Tests the compute gate with a device whose progress the test controls and a session page that the test
// writes as poold does.
#include "server/worker/compute/compute_gate.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>

#include "server/worker/session/stream_gates.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker;
using quota::Arbiter;
using quota::TurnWord;
using State = Arbiter::Turn::State;
using namespace std::chrono_literals;

namespace {

// A simulated device: events are numbered in the order in which they are recorded, and the first `passed` of
// them have completed.
struct Device {
  std::mutex mutex;
  std::condition_variable moved;
  uint64_t recorded = 0, passed = 0;
  int alive = 0;
  std::atomic<float> event_milliseconds{1};  // between two events
  // In how many tenths of each millisecond stream queries find the device busy.
  std::atomic<int> busy_tenths{0};
  std::atomic<int> queries{0};  // of streams
  void pass(uint64_t number) {
    {
      const std::lock_guard lock(mutex);
      passed = std::max(passed, number);
    }
    moved.notify_all();
  }
};
Device* g_device = nullptr;

struct Event {
  uint64_t number = 0;
};
Event& event_of(CUevent event) {
  return *reinterpret_cast<Event*>(event);
}

DeviceApi fake_api() {
  DeviceApi api;
  api.cuCtxSetCurrent = [](CUcontext) { return CUDA_SUCCESS; };
  api.cuEventCreate = [](CUevent* event, unsigned) {
    const std::lock_guard lock(g_device->mutex);
    ++g_device->alive;
    *event = reinterpret_cast<CUevent>(new Event);
    return CUDA_SUCCESS;
  };
  api.cuEventDestroy_v2 = [](CUevent event) {
    const std::lock_guard lock(g_device->mutex);
    --g_device->alive;
    delete &event_of(event);
    return CUDA_SUCCESS;
  };
  api.cuEventRecord = [](CUevent event, CUstream) {
    const std::lock_guard lock(g_device->mutex);
    event_of(event).number = ++g_device->recorded;
    return CUDA_SUCCESS;
  };
  api.cuEventQuery = [](CUevent event) {
    const std::lock_guard lock(g_device->mutex);
    return event_of(event).number <= g_device->passed ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  };
  api.cuEventSynchronize = [](CUevent event) {
    std::unique_lock lock(g_device->mutex);
    const uint64_t number = event_of(event).number;
    g_device->moved.wait(lock, [&] { return number <= g_device->passed; });
    return CUDA_SUCCESS;
  };
  api.cuStreamQuery = [](CUstream) {
    ++g_device->queries;
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return now / 100us % 10 < g_device->busy_tenths ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
  };
  return api;
}

CUresult elapsed(float* milliseconds, CUevent start, CUevent end) {
  *milliseconds = (static_cast<float>(event_of(end).number) - static_cast<float>(event_of(start).number)) *
                  g_device->event_milliseconds;
  return CUDA_SUCCESS;
}

bool eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + 20s;
  while (!condition() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(200us);
  return condition();
}

struct GatedSession {
  GatedSession() {
    g_device = &device;
    page = *quota::SharedPage<quota::SessionPage>::create("test");
    gate = std::make_unique<ComputeGate>(
        api, Usage{page, nullptr, 0}, waits, [this] { ++rings; }, [this] { ++wakes; });
    gate->load([](const char*) { return reinterpret_cast<void*>(&elapsed); });
    context = contexts.add(1, reinterpret_cast<CUcontext>(1), 0, true);
    contexts.enter(context);
  }
  ~GatedSession() {
    device.pass(~uint64_t{0});
    gate->stop();
    waits.stop();
    gate->drop(*context);
    context->timed_events->clear();
    CHECK(device.alive == 0);
    invalidate_current_context();
  }
  // Gives or takes the turn as poold does.
  void turn(State state, bool bounded, bool single = false, bool wanted = false) {
    if (state == State::open) ++number;
    (*page)->turns[0].store(TurnWord::of({state, bounded, single, wanted}, number).word);
    quota::wake_worker((*page)->bell);
  }
  TurnWord word() const { return {(*page)->turns[0].load()}; }
  CUresult work(StreamState& stream, const WorkKind& kind = kernel_kind(nullptr, 100, 32)) {
    return gate->run(stream, kind, [&] { return ++done, CUDA_SUCCESS; });
  }
  CUresult work() { return work(context->legacy); }
  std::future<CUresult> work_elsewhere() {
    return std::async(std::launch::async, [this] { return work(); });
  }
  // Submits so many pieces, each followed by a sleep, that the gate stops measuring every piece for a while.
  void sleep_often() {
    turn(State::open, false);
    for (int i = 0; i < 40; ++i) {
      CHECK(work() == CUDA_SUCCESS);
      gate->before_sleep();
    }
    device.pass(device.recorded);
    gate->before_sleep();
  }
  std::chrono::nanoseconds gpu_time() const {
    return std::chrono::nanoseconds((*page)->gpus[0].gpu_nanoseconds.load());
  }
  bool blocks(std::future<CUresult>& result) { return result.wait_for(30ms) == std::future_status::timeout; }

  Device device;
  const DeviceApi api = fake_api();
  CurrentCommand current_command;
  Contexts contexts{api, current_command};
  WaitPool waits;
  std::shared_ptr<quota::SharedPage<quota::SessionPage>> page;
  std::unique_ptr<ComputeGate> gate;
  ContextState* context = nullptr;
  std::atomic<int> rings{0}, wakes{0};
  std::atomic<int> done{0};
  uint32_t number = 0;
};

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
