// What a stream computes, measured with the device's own clock: pieces of work with an event before the first command and one
// behind the last. Without its owner's lock (compute_gate.h) only where said.
#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>

#include "server/worker/contexts.h"

namespace gpupool::worker {

struct ComputeGpu;

// What sort of work: the kernel and its shape, or a fill or copy and its size. Not 0.
using WorkKind = uint64_t;
WorkKind kernel_kind(const void* function, uint64_t blocks, uint64_t threads);
WorkKind transfer_kind(uint64_t bytes);
inline bool is_kernel(WorkKind kind) { return (kind & 1) != 0; }

// How long work of a kind takes, from what was measured.
class Estimates {
 public:
  static constexpr double kUnknown = 1e6;  // nanoseconds
  bool knows(WorkKind kind) const { return known_.contains(kind); }
  double of(WorkKind kind) const;
  void learn(WorkKind kind, double nanoseconds);
  void forget() { known_.clear(); }

 private:
  static constexpr size_t kMost = 4096;
  std::unordered_map<WorkKind, double> known_;
};

struct ComputePiece {
  CUevent start = nullptr;
  CUevent end = nullptr;
  uint64_t works = 0;
  WorkKind kind = 0;    // 0: several
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
  // The executor's, but that `open` changes under the lock:
  bool open = false;          // there is a piece with a beginning and no end yet
  CUevent start = nullptr;
  uint64_t works = 0;
  WorkKind kind = 0;
  // Under the lock:
  double expected = 0;              // of the open piece
  std::deque<ComputePiece> pieces;  // that have ended, oldest first, and are not seen done yet
  Clock::time_point front_since{};
  bool front_started = false;
  int away = 0;                     // nodes of its graph that wait for the client
  Clock::time_point away_since{};
  double away_nanoseconds = 0;      // in which only the client worked: not charged
  size_t strays = 0;                // the oldest so many go on although the turn was taken away
  bool watched = false;             // a wait thread waits for the oldest
  bool leaving = false;             // the context is about to be destroyed
  bool orphan = false;              // the stream is gone
};

}  // namespace gpupool::worker
