// What a stream computes, measured with the device's own clock: pieces of work with an event before the first command and one
// behind the last. The time of a sampled piece is not measured but sampled (compute_gate_samples.cc): it has no event before its first command.
// Without its owner's lock (compute_gate.h) only where said.
#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <unordered_map>
#include <utility>

#include "server/worker/contexts.h"

namespace gpupool::worker {

struct ComputeGpu;

// What sort of work: a kernel (or graph) and its shape, or a fill or copy and its size.
struct WorkKind {
  uint64_t shape = 0;   // 0: several
  uint64_t family = 0;  // the kernel, in whatever shape
  double size = 1;      // threads or bytes: what the times of a family are proportional to
  bool is_kernel() const { return (shape & 1) != 0; }
  bool operator==(const WorkKind& other) const { return shape == other.shape; }
};
WorkKind kernel_kind(const void* function, uint64_t blocks, uint64_t threads);
WorkKind transfer_kind(uint64_t bytes);

// How long work of a kind takes, from what was measured; of a shape that is new, from the last times of its family. What has not been used
// for the longest time is forgotten.
class Estimates {
 public:
  static constexpr double kUnknown = 1e6;  // nanoseconds
  static constexpr size_t kMost = 4096;    // shapes and families
  bool knows(const WorkKind& kind) const { return known_.contains(kind.shape) || known_.contains(kind.family); }
  double of(const WorkKind& kind);
  void learn(const WorkKind& kind, double nanoseconds);

 private:
  using Times = std::list<std::pair<uint64_t, double>>;
  const double* find(uint64_t key);
  void learn(uint64_t key, double time);

  Times times_;  // the last used in front; of a family, for each thread or byte
  std::unordered_map<uint64_t, Times::iterator> known_;
};

struct ComputePiece {
  CUevent start = nullptr;  // null: a sampled piece
  CUevent end = nullptr;
  uint64_t works = 0;
  WorkKind kind;
  double expected = 0;  // nanoseconds
  bool known = false;   // work of this kind was measured before
};

struct ComputeLane {
  using Clock = std::chrono::steady_clock;

  ComputeLane(ComputeGpu& gpu, StreamState& stream);

  ComputeGpu& gpu;
  const CUcontext context;
  const CUstream stream;      // null: the legacy one
  const std::shared_ptr<EventPool> events;
  const bool samplable;       // any thread can query the stream: not the legacy stream of a green context, which other threads cannot make current
  // The executor's, but that `open`, `sampled` and `resting` change under the lock:
  bool open = false;          // there is a piece with a beginning and no end yet
  bool sampled = false;       // the open piece is sampled
  bool resting = false;       // the open piece is sampled, and the executor has slept since the piece's last command
  bool behind_wait = false;   // the next piece comes behind a wait of the stream, in which the stream is not idle either: it is measured
  CUevent start = nullptr;
  uint64_t works = 0;
  WorkKind kind;
  // Under the lock:
  bool seen_idle = false;           // the stream, while the piece was resting
  double expected = 0;              // of the open piece
  std::deque<ComputePiece> pieces;  // that have ended, oldest first, and are not seen done yet
  Clock::time_point front_since{};
  bool front_started = false;
  size_t strays = 0;                // the oldest so many go on although the turn was taken away
  bool watched = false;             // a wait thread waits for the oldest
  bool leaving = false;             // the context is about to be destroyed
  bool orphan = false;              // the stream is gone

  // On the open piece.
  bool may_be_at_work() const { return open && !seen_idle; }
};

}  // namespace gpupool::worker
