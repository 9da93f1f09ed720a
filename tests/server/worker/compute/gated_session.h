// A session's compute gate on a simulated device whose progress the test controls, with a session page that
// the test writes as poold does. Driver calls reach the device of the latest GatedSession. Used from the
// test's thread; the device, `rings`, `wakes` and `done` are shared with other threads.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>

#include "server/quota/arbiter.h"
#include "server/quota/session_page.h"
#include "server/quota/shared_page.h"
#include "server/quota/turn_word.h"
#include "server/worker/compute/compute_gate.h"
#include "server/worker/device/device_api.h"
#include "server/worker/session/contexts.h"
#include "server/worker/session/current_command.h"
#include "server/worker/session/session_start.h"
#include "server/worker/session/waits.h"
#include "tests/support/catch.h"

namespace gpupool::worker::test {

using quota::TurnWord;
using State = quota::Arbiter::Turn::State;

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
inline Device* g_device = nullptr;

struct Event {
  uint64_t number = 0;
};
inline Event& event_of(CUevent event) {
  return *reinterpret_cast<Event*>(event);
}

inline DeviceApi fake_api() {
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
    return now / std::chrono::microseconds{100} % 10 < g_device->busy_tenths ? CUDA_ERROR_NOT_READY
                                                                             : CUDA_SUCCESS;
  };
  return api;
}

inline CUresult elapsed(float* milliseconds, CUevent start, CUevent end) {
  *milliseconds = (static_cast<float>(event_of(end).number) - static_cast<float>(event_of(start).number)) *
                  g_device->event_milliseconds;
  return CUDA_SUCCESS;
}

inline bool eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds{20};
  while (!condition() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::microseconds{200});
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
  bool blocks(std::future<CUresult>& result) {
    return result.wait_for(std::chrono::milliseconds{30}) == std::future_status::timeout;
  }

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

}  // namespace gpupool::worker::test
