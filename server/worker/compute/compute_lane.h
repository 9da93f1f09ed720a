// The work of one stream, divided into pieces that are measured with the device's clock by an event before
// the first and after the last command. A sampled piece has no start event; its time is estimated
// (compute_gate_samples.cc). Used by ComputeGate, under its lock unless stated otherwise.
#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <unordered_map>
#include <utility>

#include "server/worker/session/contexts.h"

namespace gpupool::worker {

struct ComputeGpu;

// The kind of work, by which its duration is estimated: a kernel or graph and its launch shape, or a fill or
// copy and its size.
struct WorkKind {
  uint64_t shape = 0;   // hash; 0: several kinds
  uint64_t family = 0;  // hash of the kernel alone, regardless of shape
  double size = 1;      // threads or bytes, to which the times within a family are taken to be proportional
  bool is_kernel() const { return (shape & 1) != 0; }
  bool operator==(const WorkKind& other) const { return shape == other.shape; }
};
WorkKind kernel_kind(const void* function, uint64_t blocks, uint64_t threads);
WorkKind transfer_kind(uint64_t bytes);

// Expected durations of work by kind, in nanoseconds, learned from measurements. A new shape is estimated
// from the recent times of its family. Holds the kMost most recently used entries.
class Estimates {
 public:
  static constexpr double kUnknown = 1e6;  // nanoseconds
  static constexpr size_t kMost = 4096;    // shapes and families together
  bool knows(const WorkKind& kind) const {
    return known_.contains(kind.shape) || known_.contains(kind.family);
  }
  double of(const WorkKind& kind);
  void learn(const WorkKind& kind, double nanoseconds);

 private:
  using Times = std::list<std::pair<uint64_t, double>>;
  const double* find(uint64_t key);
  void learn(uint64_t key, double time);

  Times times_;  // most recently used first; time of a shape, or time per thread or byte of a family
  std::unordered_map<uint64_t, Times::iterator> known_;
};

struct ComputePiece {
  CUevent start = nullptr;  // null: a sampled piece
  CUevent end = nullptr;
  uint64_t commands = 0;
  WorkKind kind;
  double expected = 0;  // nanoseconds
  bool known = false;   // work of this kind has been measured before
};

struct ComputeLane {
  using Clock = std::chrono::steady_clock;

  ComputeLane(ComputeGpu& gpu, StreamState& stream);

  ComputeGpu& gpu;
  const CUcontext context;
  const CUstream stream;  // null: the legacy stream
  const std::shared_ptr<EventPool> events;
  // False for the legacy stream of a green context, which other threads cannot make current.
  const bool samplable;
  // Executor's thread; but `open`, `sampled` and `executor_slept` are changed under the lock:
  bool open = false;     // a piece has begun and not ended
  bool sampled = false;  // the open piece is sampled
  bool executor_slept =
      false;  // the open piece is sampled, and the executor has slept since the piece's last command
  // The stream waits for something before the next piece; the piece must be measured, because the stream is
  // not idle during the wait either.
  bool follows_wait = false;
  CUevent start = nullptr;
  uint64_t commands = 0;
  WorkKind kind;
  // Guarded by ComputeGate's lock:
  bool seen_idle = false;           // the stream has been idle since the executor slept
  double expected = 0;              // nanoseconds, of the open piece
  std::deque<ComputePiece> pieces;  // ended pieces that are not known to be finished, oldest first
  Clock::time_point front_since{};
  bool front_started = false;
  size_t overrun_pieces = 0;  // number of oldest pieces that continue although the turn was taken away
  bool watched = false;       // a wait thread waits for the oldest piece
  bool leaving = false;       // the context is about to be destroyed
  bool orphan = false;        // the stream is destroyed

  // True if the device may be working on the open piece.
  bool may_be_at_work() const { return open && !seen_idle; }
};

}  // namespace gpupool::worker
