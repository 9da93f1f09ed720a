// Gates keep a stream's later commands out of the driver until the client has done something: sent a copy's data, received it, run a host
// function, resumed the stream. While a stream has a closed gate the backlog (backlog.h) holds its commands. So no queue of the driver
// contains an operation that only the client can complete, and no driver call has to return before the client can complete it.
//
// A gate has the sequence number of the command that closed it, however late that happened: commands before that one do not wait for it.
//
// StreamGate::open() and StreamGates::describe() may be called by any thread; everything else belongs to the executor's thread. A gate that
// was opened counts as closed until settle(), which the executor calls between two commands.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "server/worker/contexts.h"
#include "server/worker/dump.h"

namespace gpupool::worker {

class StreamGates;

class StreamGate {
 public:
  // Called by settle(), with the stream's context current.
  using Opened = std::function<void(StreamState&)>;

  StreamGate(StreamGates& gates, StreamState& stream, uint64_t sequence, const char* reason, bool for_all_streams, Opened opened)
      : gates_(gates), stream_(&stream), stream_handle_(stream.handle), context_handle_(stream.context->handle), sequence_(sequence),
        reason_(reason), for_all_streams_(for_all_streams), opened_(std::move(opened)) {}
  // Wakes the executor if the backlog waits for a gate.
  void open();

 private:
  friend class StreamGates;

  StreamGates& gates_;
  StreamState* const stream_;
  const uint64_t stream_handle_, context_handle_, sequence_;
  const char* const reason_;
  const std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
  const bool for_all_streams_;
  Opened opened_;
  std::atomic<bool> is_open_{false};
};

class StreamGates {
 public:
  // `wake` ends the executor's sleep. `closing` is called for the stream of each gate that closes.
  StreamGates(Contexts& contexts, std::function<void()> wake, std::function<void(StreamState&)> closing)
      : contexts_(contexts), wake_(std::move(wake)), closing_(std::move(closing)) {}
  StreamGates(const StreamGates&) = delete;
  StreamGates& operator=(const StreamGates&) = delete;

  // `sequence`: the command's. `reason`: what the stream waits for, a string literal such as "a host function". `for_all_streams`: work that any
  // stream gets later comes after this gate, not only the stream's own.
  std::shared_ptr<StreamGate> close(StreamState& stream, uint64_t sequence, const char* reason, StreamGate::Opened opened = nullptr,
                                    bool for_all_streams = false);
  // A gate that the client opens by `number`. Null: another gate has this number.
  std::shared_ptr<StreamGate> close_by_number(StreamState& stream, uint64_t sequence, const char* reason, uint64_t number,
                                              StreamGate::Opened opened = nullptr);
  // Forgets the number of a gate, for the caller to open it. Null: no gate has it.
  std::shared_ptr<StreamGate> take(uint64_t number);
  // Opens the gate with the number. A gate that is yet to be closed, because its command is kept, is not closed any more: is_lifted().
  void lift(uint64_t number);
  // Once, whether lift() came before the gate.
  bool is_lifted(uint64_t number) { return lifted_.erase(number) != 0; }

  bool any() const { return !closed_.empty(); }
  // Closed by a command before `sequence`.
  bool any_before(uint64_t sequence) const;
  bool any_for_all_streams_before(uint64_t sequence) const;
  bool any_in(const ContextState& context) const;
  // Some gate waits for the client's answer, not only for data on its way.
  bool any_by_number() const { return !numbers_.empty(); }
  const std::vector<std::shared_ptr<StreamGate>>& closed() const { return closed_; }
  static StreamState& stream_of(const StreamGate& gate) { return *gate.stream_; }
  static uint64_t sequence_of(const StreamGate& gate) { return gate.sequence_; }

  bool has_opened() const { return any_open_.load(std::memory_order_relaxed); }
  // Forgets the open gates after calling their `opened`. True: there was one.
  bool settle();
  // Whether commands wait for gates, so that opening one has to wake the executor.
  void set_awaited(bool awaited) { awaited_.store(awaited); }
  // Until a gate opens, at most so long.
  void wait(std::chrono::milliseconds longest);

  // Opens the numbered gates of a context that is about to be destroyed.
  void open_numbered(const ContextState& context);
  // The stream is about to be destroyed, or the session to end: `opened` is not called any more.
  void drop(const StreamState& stream);
  void clear();
  // Any thread.
  void describe(admin::WorkerDump& dump);

 private:
  friend class StreamGate;
  static constexpr size_t kMostLifted = 4096;  // of holds that are kept; what is left of contexts that are gone makes room

  // Takes the gates for which `which` holds out of closed_.
  template <class Which>
  std::vector<std::shared_ptr<StreamGate>> take_if(Which which);
  void forget(StreamGate& gate);

  Contexts& contexts_;
  const std::function<void()> wake_;
  const std::function<void(StreamState&)> closing_;
  std::vector<std::shared_ptr<StreamGate>> closed_;  // changed with the mutex held
  std::unordered_map<uint64_t, std::shared_ptr<StreamGate>> numbers_;
  std::set<uint64_t> lifted_;  // at most kMostLifted, the newest
  size_t for_all_streams_ = 0;
  std::atomic<bool> any_open_{false};
  std::atomic<bool> awaited_{false};
  std::mutex mutex_;  // never held during a driver call
  std::condition_variable opened_one_;
};

}  // namespace gpupool::worker
