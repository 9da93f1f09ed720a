// Commands that the executor has received but not executed, because their stream has a closed gate
// (stream_gates.h) or because they depend on a command that waits for one. Dependent commands are executed in
// order; independent commands pass them.
//
// Executor's thread, except describe(). The executor bounds the size: it stops receiving when bytes() gets
// too large.
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
#include "server/worker/session/command_order.h"
#include "server/worker/session/stream_gates.h"

namespace gpupool::worker {

class Backlog {
 public:
  using Clock = std::chrono::steady_clock;
  struct KeptCommand {
    wire::CommandHeader header;
    std::vector<std::byte> body;
    CommandOrder order;
    // When to tell the client that the command was accepted, executed or not.
    std::optional<Clock::time_point> answer_by;
    const char* waits_for;  // as returned by must_wait()
    // The client's handle of order.stream, which may be destroyed by now; set by keep().
    uint64_t stream = CurrentCommand::kNoStream;
  };

  Backlog(Contexts& contexts, StreamGates& gates) : contexts_(contexts), gates_(gates) {}
  Backlog(const Backlog&) = delete;
  Backlog& operator=(const Backlog&) = delete;

  bool empty() const { return kept_.empty() && running_.empty(); }
  uint64_t bytes() const { return bytes_; }
  size_t size() const { return kept_.size() + running_.size(); }
  bool any_in(const ContextState& context) const;
  // Returns what the command has to wait for, as a string literal, or null if it can be executed now.
  const char* must_wait(const CommandOrder& order) const;
  void keep(KeptCommand command);
  // Calls `execute` for each command that no longer has to wait, in order. Stops and returns false when
  // `execute` does.
  bool run(const std::function<bool(KeptCommand&)>& execute);

  // Calls `answer` for each command whose `answer_by` has passed and clears its wish for a reply. Returns the
  // time until the next `answer_by`, if any.
  std::optional<Clock::duration> answer_overdue(
      const std::function<void(const wire::CommandHeader&)>& answer);
  // Declares that executed work behind a closed gate will still write the object: commands that name it wait
  // until release().
  void hold(uint64_t key);
  void release(uint64_t key);
  // Likewise for work that will still read the object: only commands that change it wait.
  void hold_read(uint64_t key);
  void release_read(uint64_t key);
  // True if a kept command destroys the object; the client already regards it as destroyed.
  bool destroys(uint64_t handle) const { return writes_.contains(handle); }
  // Call before a command that passes the backlog destroys the stream. Kept commands for the stream then find
  // it destroyed.
  void forget(const StreamState& stream);
  // Removes and returns the kept commands of a context that is about to be destroyed.
  std::vector<KeptCommand> remove(const ContextState& context);
  void clear();
  // Any thread.
  void describe(admin::WorkerDump& dump);

 private:
  // Considers only gates of commands before `sequence`: a command does not wait for gates that later commands
  // close.
  static bool waits(const StreamState& stream, uint64_t sequence) {
    return stream.oldest_gate < sequence || stream.kept != 0;
  }
  bool waits_with_legacy(StreamState& stream, uint64_t sequence) const;
  bool any_waiting(uint64_t sequence, const std::function<bool(StreamState&)>& which) const;
  void count(const CommandOrder& order, int one);
  void reset_counts();

  Contexts& contexts_;
  StreamGates& gates_;
  // Guards kept_, running_ and bytes_ on writes and on reads by other threads; never held during a driver
  // call.
  std::mutex mutex_;
  std::deque<KeptCommand> kept_;
  std::deque<KeptCommand> running_;  // commands that run() has yet to examine
  uint64_t bytes_ = 0;
  // The rest is for the executor's thread only.
  size_t to_answer_ = 0;  // number of commands with `answer_by`
  // Summary of kept_, which later commands are compared with:
  std::vector<StreamState*> streams_;  // streams with StreamState::kept != 0
  std::unordered_map<uint64_t, size_t> reads_, writes_;
  size_t alone_ = 0, for_all_streams_ = 0;
  std::unordered_map<uint64_t, size_t> held_, held_reads_;  // counts per key of hold() and hold_read()
};

}  // namespace gpupool::worker
