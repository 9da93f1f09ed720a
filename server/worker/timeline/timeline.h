// Records for the client's timeline what the session's streams do, with the device's times, and why streams
// and threads wait. Off unless the client asked for it in its hello, and until its first read_clock: on a
// connection to which a session moves, it expects no such messages before.
//
// Work is measured by an event before and one after it in its stream. A thread sees when they have passed and
// sends the records in messages of at most wire::kMostTimelineBytes. At most kMostPending pieces of work and
// kMostReady records are kept; what does not fit or cannot be measured is counted, and the client is told the
// count. note() and HostSpan: any thread; everything else: executor's thread.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "protocol/wire/timeline.h"
#include "server/worker/session/contexts.h"
#include "server/worker/session/current_command.h"
#include "server/worker/session/outbox.h"
#include "server/worker/session/session_start.h"
#include "server/worker/timeline/gpu_clock.h"
#include "server/worker/timeline/host_span.h"

namespace gpupool::worker {

class Timeline {
 public:
  static constexpr size_t kMostPending = 8192;
  static constexpr size_t kMostReady = 16384;

  // Work that is given to a stream.
  struct Work {
    wire::TimelineKind kind;
    uint64_t subject;  // as in wire::TimelineRecord
    const uint32_t* grid = nullptr;
    const uint32_t* block = nullptr;
  };

  Timeline(const DeviceApi& api, const CurrentCommand& current_command, Outbox& outbox, bool on);
  ~Timeline() { stop(); }
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  bool on() const { return on_; }  // the client wants a timeline
  // Starts the thread, if on. The caller is the executor's thread.
  void start(const SymbolLookup& symbol);
  // Calls `call`, which enqueues the work in `stream`, whose context must be current, and measures the work
  // if the call succeeds.
  template <class F>
  CUresult measure(StreamState& stream, const Work& work, F&& call) {
    if (!recording_.load(std::memory_order_relaxed)) [[likely]]
      return call();
    auto entry = begin(stream, work);
    const CUresult result = call();
    if (entry) end(std::move(*entry), stream, result == CUDA_SUCCESS);
    return result;
  }
  // Begins a record in the stream's order whose end the caller tells. Null if off or full. `text`: a string
  // literal.
  std::shared_ptr<HostSpan> begin_span(StreamState& stream, const Work& work, const char* text = nullptr);
  // A record that is over, of no stream. `text`: a string literal.
  void note(wire::TimelineKind kind, uint64_t subject, uint64_t begin, const char* text = nullptr);
  // Sends the clock, after all finished records if `flags` has wire::kFlushTimeline.
  void answer_clock(uint64_t command, uint32_t flags);
  // Call before the context is destroyed, when its work is done.
  void drop(const ContextState& context);
  void stop();

 private:
  struct Entry {
    wire::TimelineRecord record{};
    const char* text = nullptr;
    CUcontext context = nullptr;
    std::shared_ptr<EventPool> events;  // null: `host` has the time
    CUevent start = nullptr, end = nullptr;
    std::shared_ptr<HostSpan> host;
  };
  struct Ready {
    wire::TimelineRecord record;
    const char* text;
  };
  struct Queue {
    std::deque<Entry> entries;
    uint64_t last_end = 0;  // of the last record, so that times of one stream do not overlap
  };

  std::optional<Entry> begin(StreamState& stream, const Work& work);
  void end(Entry entry, StreamState& stream, bool good);
  wire::TimelineRecord record_of(const StreamState& stream, const Work& work) const;
  bool reserve();
  void add(Entry entry);
  void publish(const wire::TimelineRecord& record, const char* text);
  // These require collecting_.
  void collect();
  void collect_from(Queue& queue);
  bool is_done(const Entry& entry) const;
  bool measure_gpu(Entry& entry);
  void give_up(Entry& entry);
  void drop_queue(Queue& queue);

  bool send_batch(uint64_t answers, uint64_t received);
  void run();
  static void note_wait(const char* reason, std::chrono::steady_clock::time_point since);

  const DeviceApi& api_;
  const CurrentCommand& current_command_;
  Outbox& outbox_;
  const bool on_;
  const uint64_t clock_;  // random
  GpuClock::ElapsedTime elapsed_ = nullptr;
  std::atomic<bool> recording_{false};
  std::atomic<uint64_t> dropped_{0};
  std::atomic<size_t> pending_{0};      // entries in incoming_ and queues_
  std::atomic<uint32_t> gpu_error_{0};  // nanoseconds

  std::mutex mutex_;  // guards incoming_ to stopping_; never held during a driver call
  std::condition_variable wake_;
  std::vector<Entry> incoming_;
  std::deque<Ready> ready_;
  bool idle_ = true;  // the thread waits for something to do
  bool stopping_ = false;

  std::mutex collecting_;  // locked before mutex_; guards queues_ and clocks_
  std::map<std::pair<CUcontext, uint64_t>, Queue> queues_;
  std::map<CUcontext, GpuClock> clocks_;
  std::thread thread_;
};

}  // namespace gpupool::worker
