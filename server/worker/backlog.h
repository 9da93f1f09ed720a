// Commands that the executor has received and not executed: their stream has a closed gate (stream_gates.h), or they come after one that
// waits for that. They are executed in their order as far as they depend on each other; commands that depend on none of them pass.
//
// Executor's thread, but for describe(). Bounded by the executor, which stops receiving when bytes() gets too large.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "protocol/wire/frame.h"
#include "server/worker/command_order.h"
#include "server/worker/stream_gates.h"

namespace gpupool::worker {

class Backlog {
 public:
  using Clock = std::chrono::steady_clock;
  struct Kept {
    wire::CommandHeader header;
    std::vector<std::byte> body;
    CommandOrder order;
    std::optional<Clock::time_point> answer_by;  // the client is told by then that the command was accepted, executed or not
    const char* waits_for;                       // of must_wait()
    uint64_t stream = AtWork::kNoStream;         // the client's handle of order.stream, which may be destroyed; keep() sets it
  };

  Backlog(Contexts& contexts, StreamGates& gates) : contexts_(contexts), gates_(gates) {}
  Backlog(const Backlog&) = delete;
  Backlog& operator=(const Backlog&) = delete;

  bool empty() const { return kept_.empty() && running_.empty(); }
  uint64_t bytes() const { return bytes_; }
  size_t size() const { return kept_.size() + running_.size(); }
  bool any_in(const ContextState& context) const;
  // What the command has to wait for, a string literal; null: nothing.
  const char* must_wait(const CommandOrder& order) const;
  void keep(Kept command);
  // Calls `execute` for each command that need not wait any more, in their order. False: so did `execute`, which ends this.
  bool run(const std::function<bool(Kept&)>& execute);

  // Calls `answer` with the commands whose `answer_by` has come, which want no reply any more. The time until the next comes.
  std::optional<Clock::duration> answer_late_ones(const std::function<void(const wire::CommandHeader&)>& answer);
  // Work behind a closed gate, of a command that was executed, has still to write the object: commands that name it wait until release().
  void hold(uint64_t key);
  void release(uint64_t key);
  // Likewise, of work that has still to read the object: commands that change it wait.
  void hold_read(uint64_t key);
  void release_read(uint64_t key);
  // Some command will destroy the object, which the client takes for destroyed already.
  bool destroys(uint64_t handle) const { return writes_.contains(handle); }
  // The stream is about to be destroyed by a command that is out of order: commands that name it will find that.
  void forget(const StreamState& stream);
  // Removes the commands of a context that is about to be destroyed.
  std::vector<Kept> remove(const ContextState& context);
  void clear();
  // Any thread.
  void describe(admin::WorkerDump& dump);

 private:
  // These say what commands before `sequence` have left: a command does not wait for gates that later ones close.
  static bool waits(const StreamState& stream, uint64_t sequence) { return stream.oldest_gate < sequence || stream.kept != 0; }
  bool waits_with_legacy(StreamState& stream, uint64_t sequence) const;
  bool any_waiting(uint64_t sequence, const std::function<bool(StreamState&)>& which) const;
  void count(const CommandOrder& order, int one);
  void reset_counts();

  Contexts& contexts_;
  StreamGates& gates_;
  std::mutex mutex_;          // what follows, where it is changed, or read by another thread; never held during a driver call
  std::deque<Kept> kept_;
  std::deque<Kept> running_;  // of run(): still to be looked at
  uint64_t bytes_ = 0;
  // No other thread's.
  size_t to_answer_ = 0;               // commands with `answer_by`
  // Of kept_: what later commands are compared with.
  std::vector<StreamState*> streams_;  // with StreamState::kept
  std::unordered_map<uint64_t, size_t> reads_, writes_;
  size_t alone_ = 0, for_all_streams_ = 0;
  std::unordered_map<uint64_t, size_t> held_, held_reads_;  // by hold() and hold_read(): how often
};

}  // namespace gpupool::worker
