// Admission of all commands that make a GPU compute: launches, fills, copies within the device. Measures the
// GPU time that the session uses. Where other sessions share the GPU or the tenant has a hard limit, work
// passes only during the session's turns (quota/turn_word.h).
//
// A session that is alone on its GPU and has no limit pays one load per command. A piece is up to 1024
// commands of one stream, with an event before the first and after the last command; it also ends when the
// executor goes to sleep. Events cost device time and prevent kernels from overlapping, so for a session that
// sleeps often only one piece per 10 ms has events. The time of its other pieces is sampled: a thread checks
// every 5 ms whether the device is working on them (compute_gate_samples.cc).
//
// A session that shares the GPU keeps little work on the device (kAhead), so that it can give up its turn
// soon after poold asks for it. It gives the turn up slightly early, once the last work has started and is
// short (kHandOver), because the next session's first work takes a moment to reach the device. Work that
// continues after the turn is still charged. Work of a stream that waits for something else does not count as
// being on the device until it starts, and work that continues after poold has taken the turn away no longer
// counts. So the gate cannot wait for long for something that only the executor can bring about.
//
// stop() and describe(): any thread; all other functions: executor's thread. A thread of the gate watches
// poold's bell in the session page, and wait threads (waits.h) wait for the device.
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
#include "server/worker/compute/compute_lane.h"
#include "server/worker/session/dump.h"
#include "server/worker/session/session_start.h"
#include "server/worker/session/waits.h"

namespace gpupool::worker {

// The session's use of one GPU.
struct ComputeGpu {
  uint32_t index = 0;
  std::atomic<uint32_t>* turn = nullptr;  // in the session page
  quota::SessionPage::Gpu* use = nullptr;
  std::vector<std::shared_ptr<ComputeLane>> lanes;
  // By context: the end event of the last measured piece. A later piece is charged at most the time since
  // this event.
  std::unordered_map<CUcontext, CUevent> latest;
  // Executor's thread. Each measured piece of a session that is alone moves this time by kMeasureEvery;
  // pieces are sampled instead while it is more than kMeasureAhead in the future.
  ComputeLane::Clock::time_point next_measured{};
  bool held = false;  // the session had the turn when last checked
  ComputeLane::Clock::time_point held_since{};
  bool executor_waits = false;
  ComputeLane::Clock::time_point idle_since{};
};

class ComputeGate {
 public:
  using Clock = ComputeLane::Clock;

  // `ring` makes poold look at the session page. `wake` interrupts the executor's sleep, so that it calls
  // before_sleep() again.
  ComputeGate(const DeviceApi& api, const Usage& usage, WaitPool& waits, std::function<void()> ring,
              std::function<void()> wake);
  ~ComputeGate();
  ComputeGate(const ComputeGate&) = delete;
  ComputeGate& operator=(const ComputeGate&) = delete;

  void load(const SymbolLookup& symbol);
  // `ended` is called when a turn on a GPU has ended, with the gate's lock held. Call before the first
  // command.
  using TurnEnded = std::function<void(uint32_t gpu, Clock::time_point since)>;
  void on_turn_end(TurnEnded ended) { turn_ended_ = std::move(ended); }
  // Admits `work`, which enqueues work of this kind in `stream`, whose context must be current. Blocks until
  // the session has its turn. Returns the result of `work`, or CUDA_ERROR_OPERATING_SYSTEM if the session is
  // over.
  template <class F>
  CUresult run(StreamState& stream, const WorkKind& kind, F&& work) {
    if (!page_) return work();
    if (!enter(stream, kind)) return CUDA_ERROR_OPERATING_SYSTEM;
    const CUresult result = work();
    left(*stream.compute);
    return result;
  }
  // Call before the stream starts to wait for the client, for other work or for another session, so that the
  // wait is not charged as GPU time.
  void pause(StreamState& stream);
  // Call when no command is available. Returns the longest time that the executor may sleep, if limited.
  std::optional<std::chrono::microseconds> before_sleep();
  // Call after each command; costs one load unless the watcher thread has asked for attention.
  void end_pieces_if_asked() {
    if (attention_.load(std::memory_order_relaxed)) end_pieces_now();
  }
  // Call before the stream is destroyed.
  void before_stream_destroyed(StreamState& stream);
  // Call before the context is destroyed: starts no further wait in it.
  void leave(const ContextState& context);
  // Call when all work in the context is done and before it is destroyed: charges its pieces and forgets its
  // lanes.
  void drop(const ContextState& context);
  // Ends the gate: the watcher gives up the session's turns, and a blocked run() returns. Takes no lock:
  // the watcher may hold it in a driver call that waits for a kernel, and the caller must end the process
  // then.
  void stop();
  // Reports the work on the device without waiting. Any thread.
  void describe(admin::WorkerDump& dump);

 private:
  using Lock = std::unique_lock<std::mutex>;
  // Nanoseconds of remaining work; a turn given up now reaches the next session when this work is done.
  static constexpr double kHandOver = 0.25e6;
  static constexpr std::chrono::nanoseconds kAskAgain{100'000'000};
  // Longest interval between checks; also how long blocked work may keep further work from passing.
  static constexpr std::chrono::nanoseconds kLongest{1'000'000'000};

  bool enter(StreamState& stream, const WorkKind& kind);
  void left(ComputeLane& lane);
  bool wait_for_turn(ComputeLane& lane, const WorkKind& kind);
  bool add_lane(StreamState& stream);
  void begin(ComputeLane& lane);
  void end(ComputeLane& lane);
  void end_all();
  void close_pieces_before_sleep();
  void end_pieces_now();
  // For a session that is alone on its GPU.
  void begin_alone(ComputeLane& lane);
  void begin_sampled(ComputeLane& lane, Clock::time_point now);
  // The functions below require mutex_.
  double in_flight(ComputeGpu& gpu, Clock::time_point now);
  bool almost_done(ComputeGpu& gpu, double flying) const;
  bool is_blocked(ComputeLane& lane, Clock::time_point now);
  void reap(ComputeLane& lane);
  void pop(ComputeLane& lane);
  double charge(ComputeLane& lane, const ComputePiece& piece);
  void watch(const std::shared_ptr<ComputeLane>& lane);
  std::chrono::nanoseconds settle(ComputeGpu& gpu);
  std::chrono::nanoseconds settle_all();
  // Returns whether the session held the turn before.
  bool set_held(ComputeGpu& gpu, bool held);
  void give_up(ComputeGpu& gpu);
  void ask(ComputeGpu& gpu);
  std::chrono::nanoseconds take_samples();
  void sample(ComputeGpu& gpu, std::chrono::nanoseconds weight);
  void draw_next_sample(Clock::time_point now);
  bool is_idle(ComputeLane& lane);
  bool any_open_piece_at_work(ComputeGpu& gpu);
  void run_watcher();
  void run_waiter(const std::shared_ptr<ComputeLane>& lane);

  const DeviceApi& api_;
  const std::shared_ptr<quota::SharedPage<quota::SessionPage>> page_;  // null: no measuring and no waiting
  WaitPool& waits_;
  const std::function<void()> ring_, wake_;
  TurnEnded turn_ended_;
  CUresult (*elapsed_)(float*, CUevent, CUevent) = nullptr;
  std::vector<ComputeLane*> open_;      // executor's thread; lanes with an open piece
  std::atomic<bool> attention_{false};  // the watcher asks the executor to end the open pieces

  // Guards what follows. Held during driver calls such as cuEventQuery, which block while another thread
  // holds the context's lock in a call that waits.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<ComputeGpu>> gpus_;  // GPUs that the session has used
  Estimates estimates_;
  bool sampling_ = false;  // sampled work may be on the device
  int64_t sample_slot_ = 0;
  Clock::time_point next_sample_{};
  std::minstd_rand random_{std::random_device{}()};
  std::atomic<bool> stopped_{false};
  std::thread watcher_;  // started by the first command
};

}  // namespace gpupool::worker
