// Gates keep a stream's later commands out of the driver until the client has done something: sent or
// received the data of a copy, run a host function, or resumed the stream. While a stream has a closed gate,
// the backlog (backlog.h) keeps its commands. So no driver queue contains an operation that only the client
// can complete, and no driver call has to wait for the client.
//
// A gate has the sequence number of the command that closed it, even if it was closed later: earlier commands
// do not wait for it.
//
// StreamGate::open() and StreamGates::describe(): any thread; everything else: executor's thread. An opened
// gate counts as closed until settle(), which the executor calls between two commands.
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

#include "server/worker/session/contexts.h"
#include "server/worker/session/dump.h"

namespace gpupool::worker {

class HostSpan;
class StreamGates;

// Device addresses.
struct MemoryRange {
  uint64_t address = 0;
  uint64_t bytes = 0;
  bool overlaps(const MemoryRange& other) const {
    return address < other.address + other.bytes && other.address < address + bytes;
  }
};

class StreamGate {
 public:
  // Called by settle() with the stream's context current.
  using Opened = std::function<void(StreamState&)>;

  StreamGate(StreamGates& gates, StreamState& stream, uint64_t sequence, const char* reason,
             bool for_all_streams, Opened opened, MemoryRange memory)
      : gates_(gates),
        stream_(&stream),
        stream_handle_(stream.handle),
        context_handle_(stream.context->handle),
        sequence_(sequence),
        reason_(reason),
        for_all_streams_(for_all_streams),
        opened_(std::move(opened)),
        memory_(memory) {}
  // Opens the gate, and wakes the executor if commands wait for gates.
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
  const MemoryRange memory_;
  std::atomic<bool> is_open_{false};
  std::shared_ptr<HostSpan> wait_;  // for the timeline; null: not recorded
};

class StreamGates {
 public:
  // `wake` interrupts the executor's sleep. `closing` is called with the stream of each gate that is closed.
  StreamGates(Contexts& contexts, std::function<void()> wake, std::function<void(StreamState&)> closing)
      : contexts_(contexts), wake_(std::move(wake)), closing_(std::move(closing)) {}
  StreamGates(const StreamGates&) = delete;
  StreamGates& operator=(const StreamGates&) = delete;

  // `begin` is called when a stream begins to wait for the client, with the reason. The result, if not null,
  // is finished when the gate opens.
  using BeginWait = std::function<std::shared_ptr<HostSpan>(StreamState&, const char* reason)>;
  void on_wait(BeginWait begin) { begin_wait_ = std::move(begin); }

  // `sequence`: of the command. `reason`: what the stream waits for, a string literal such as "a host
  // function". `for_all_streams`: later work of every stream is ordered behind this gate, not just the
  // stream's own. `memory`: device memory that threads of this process or the client's network card may
  // access until the gate opens; frees of it wait.
  std::shared_ptr<StreamGate> close(StreamState& stream, uint64_t sequence, const char* reason,
                                    StreamGate::Opened opened = nullptr, bool for_all_streams = false,
                                    MemoryRange memory = {});
  // Closes a gate that the client opens by `number`. Returns null if the number is in use.
  std::shared_ptr<StreamGate> close_by_number(StreamState& stream, uint64_t sequence, const char* reason,
                                              uint64_t number, StreamGate::Opened opened = nullptr);
  // Removes and returns the gate with this number, for the caller to open it. Returns null if there is none.
  std::shared_ptr<StreamGate> take(uint64_t number);
  // Opens the gate with this number. If its command is still in the backlog, the gate will not be closed at
  // all: see take_early_open().
  void open_by_number(uint64_t number);
  // Returns true, once, if open_by_number() was called before the gate was to be closed.
  bool take_early_open(uint64_t number) { return opened_early_.erase(number) != 0; }

  bool any() const { return !closed_.empty(); }
  // True for gates closed by commands before `sequence`.
  bool any_before(uint64_t sequence) const;
  bool any_for_all_streams_before(uint64_t sequence) const;
  bool any_in(const ContextState& context) const;
  // True if something behind a gate of an earlier command may access the memory.
  bool any_accesses(const MemoryRange& memory, uint64_t sequence) const;
  // True if a gate waits for an answer of the client, not only for data in transit.
  bool any_by_number() const { return !numbers_.empty(); }
  const std::vector<std::shared_ptr<StreamGate>>& closed() const { return closed_; }
  static StreamState& stream_of(const StreamGate& gate) { return *gate.stream_; }
  static uint64_t sequence_of(const StreamGate& gate) { return gate.sequence_; }

  bool has_opened() const { return any_open_.load(std::memory_order_relaxed); }
  // Removes opened gates and calls their `opened`. Returns true if there were any.
  bool settle();
  // Call with true while commands wait for gates, so that opening a gate wakes the executor.
  void set_awaited(bool awaited) { awaited_.store(awaited); }
  // Waits until a gate opens, or for `longest`.
  void wait(std::chrono::milliseconds longest);

  // Opens the numbered gates of a context that is about to be destroyed.
  void open_numbered(const ContextState& context);
  // Call before the stream is destroyed (drop) or the session ends (clear): removes gates without calling
  // `opened`.
  void drop(const StreamState& stream);
  void clear();
  // Any thread.
  void describe(admin::WorkerDump& dump);

 private:
  friend class StreamGate;
  static constexpr size_t kMostOpenedEarly =
      4096;  // entries left by destroyed contexts are evicted beyond this

  // Removes and returns the gates in closed_ for which `which` is true.
  template <class Which>
  std::vector<std::shared_ptr<StreamGate>> take_if(Which which);
  void forget(StreamGate& gate);

  Contexts& contexts_;
  const std::function<void()> wake_;
  const std::function<void(StreamState&)> closing_;
  BeginWait begin_wait_;
  std::vector<std::shared_ptr<StreamGate>> closed_;  // modified under mutex_
  std::unordered_map<uint64_t, std::shared_ptr<StreamGate>> numbers_;
  std::set<uint64_t> opened_early_;  // numbers passed to open_by_number() before their gates
  size_t for_all_streams_ = 0;
  std::atomic<bool> any_open_{false};
  std::atomic<bool> awaited_{false};
  std::mutex mutex_;  // never held during a driver call
  std::condition_variable opened_one_;
};

}  // namespace gpupool::worker
