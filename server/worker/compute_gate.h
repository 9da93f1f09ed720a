// What every command that makes the device compute passes: launches, fills, copies within the device. It measures the GPU
// time that the session uses, and where others share the GPU, or its tenant has a hard limit, it lets work through in the
// session's turns only (quota/turn_word.h).
//
// Alone and without a limit a command looks at one word; an event goes before the first of 1024 commands and one behind the
// last, or before the executor sleeps. Events cost time on the device and keep kernels from overlapping, so of a session that sleeps often only one
// piece in 10 ms gets them, and the time of the others is sampled: a thread asks every 5 ms whether the device is at work on them
// (compute_gate_samples.cc). Otherwise little work is kept on the device (kAhead), so that a turn can be given up
// soon: when poold asks for it and the last work on the device is short and has begun, since the next session's first work
// takes a moment to get there. What goes on after a turn is charged as well. Work of a stream that waits for something else
// does not count until it begins; work that goes on after poold has taken the turn away does not count any more. So nothing that
// the executor would have to do can be what the gate waits for, or not for long.
//
// enter(), left(), pause(), before_sleep(), tidy(), leave(), drop(), departing() are the executor's; stop() and describe() are any thread's. A thread
// of the gate watches poold's bell; wait threads (waits.h) wait for the device.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <unordered_map>
#include <vector>

#include "server/quota/turn_word.h"
#include "server/worker/compute_lane.h"
#include "server/worker/dump.h"
#include "server/worker/session.h"
#include "server/worker/waits.h"

namespace gpupool::worker {

// One GPU, as the session uses it.
struct ComputeGpu {
  uint32_t index = 0;
  std::atomic<uint32_t>* turn = nullptr;  // in the session page
  quota::SessionPage::Gpu* use = nullptr;
  std::vector<std::shared_ptr<ComputeLane>> lanes;
  // By context, of all that is done in it: where the next piece's time begins at the earliest.
  std::unordered_map<CUcontext, CUevent> latest;
  ComputeLane::Clock::time_point next_measured{};  // the executor's: so far measured pieces are paid for, alone
  bool held = false;                // the turn, as last seen
  bool executor_waits = false;
  ComputeLane::Clock::time_point idle_since{};
};

class ComputeGate {
 public:
  using Clock = ComputeLane::Clock;

  // `ring` tells poold to look at the session page. `wake` ends the executor's sleep, so that it calls before_sleep() again.
  ComputeGate(const DeviceApi& api, const Usage& usage, WaitPool& waits, std::function<void()> ring, std::function<void()> wake);
  ~ComputeGate();
  ComputeGate(const ComputeGate&) = delete;
  ComputeGate& operator=(const ComputeGate&) = delete;

  void load(const SymbolLookup& symbol);
  // `work` gives the stream, whose context is current, work of this kind. CUDA_ERROR_OPERATING_SYSTEM: the session is over.
  template <class F>
  CUresult run(StreamState& stream, const WorkKind& kind, F&& work) {
    if (!page_) return work();
    if (!enter(stream, kind)) return CUDA_ERROR_OPERATING_SYSTEM;
    const CUresult result = work();
    left(*stream.compute);
    return result;
  }
  // The stream waits next for the client, or for something that other work or another session does: that time does not count.
  void pause(StreamState& stream);
  // No command is there. How long the executor may sleep at most.
  std::optional<std::chrono::microseconds> before_sleep();
  // After each command; costs a load.
  void tidy() {
    if (attention_.load(std::memory_order_relaxed)) tidy_up();
  }
  // The stream is about to be destroyed.
  void departing(StreamState& stream);
  // The context is about to be destroyed: no wait in it begins any more.
  void leave(const ContextState& context);
  // Everything in the context is done.
  void drop(const ContextState& context);
  // Ends the session: the watcher gives the turns up, enter() waits no longer. Takes no lock, because the watcher may hold it in a driver
  // call that waits for a kernel: the caller ends the process then.
  void stop();
  // What is on the device, as far as it can be told without waiting. Any thread.
  void describe(admin::WorkerDump& dump);

 private:
  using Lock = std::unique_lock<std::mutex>;
  static constexpr double kHandOver = 0.25e6;  // nanoseconds of work left: a turn given up now reaches the next session when that is done
  static constexpr std::chrono::nanoseconds kAskAgain{100'000'000};
  static constexpr std::chrono::nanoseconds kLongest{1'000'000'000};  // between two looks; and for work to end before more is let past it

  bool enter(StreamState& stream, const WorkKind& kind);
  void left(ComputeLane& lane);
  bool wait_for_turn(ComputeLane& lane, const WorkKind& kind);
  bool add_lane(StreamState& stream);
  void begin(ComputeLane& lane);
  void end(ComputeLane& lane);
  void end_all();
  void rest();
  void tidy_up();
  // While the session is alone.
  void begin_alone(ComputeLane& lane);
  void begin_sampled(ComputeLane& lane, Clock::time_point now);
  // With the lock held, as everything below.
  double in_flight(ComputeGpu& gpu, Clock::time_point now);
  bool almost_done(ComputeGpu& gpu, double flying) const;
  bool is_blocked(ComputeLane& lane, Clock::time_point now);
  void reap(ComputeLane& lane);
  void pop(ComputeLane& lane);
  double charge(ComputeLane& lane, const ComputePiece& piece);
  void watch(const std::shared_ptr<ComputeLane>& lane);
  std::chrono::nanoseconds settle(ComputeGpu& gpu);
  std::chrono::nanoseconds settle_all();
  void give_up(ComputeGpu& gpu);
  void ask(ComputeGpu& gpu);
  std::chrono::nanoseconds take_samples();
  void sample(ComputeGpu& gpu, std::chrono::nanoseconds weight);
  void draw_next_sample(Clock::time_point now);
  bool is_idle(ComputeLane& lane);
  bool any_resting_at_work(ComputeGpu& gpu);
  void run_watcher();
  void run_waiter(const std::shared_ptr<ComputeLane>& lane);

  const DeviceApi& api_;
  const std::shared_ptr<quota::SharedPage<quota::SessionPage>> page_;  // null: nothing is measured, nothing waits
  WaitPool& waits_;
  const std::function<void()> ring_, wake_;
  CUresult (*elapsed_)(float*, CUevent, CUevent) = nullptr;
  std::vector<ComputeLane*> open_;      // the executor's: lanes with an open piece
  std::atomic<bool> attention_{false};  // the watcher wants the executor to end the open pieces

  // Held during calls such as cuEventQuery, which wait where another thread holds the context's lock in a call that does.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<ComputeGpu>> gpus_;  // that were used
  Estimates estimates_;
  bool sampling_ = false;  // some work that is sampled may be on the device
  int64_t sample_slot_ = 0;
  Clock::time_point next_sample_{};
  std::minstd_rand random_{std::random_device{}()};
  std::atomic<bool> stopped_{false};
  std::thread watcher_;  // from the first command on
};

}  // namespace gpupool::worker
