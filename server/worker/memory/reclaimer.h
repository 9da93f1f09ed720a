// Asks poold to end a session that its client has abandoned, so that this one gets its memory
// (docs/adr/0036-sessions-resume.md). The executor's thread, which waits for the answer.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "server/worker/session/control.h"

namespace gpupool::worker {

class Outbox;

class Reclaimer {
 public:
  using Reason = server::packet::ReclaimReason;

  // `control` may be null: then there is nothing to reclaim.
  Reclaimer(Control* control, const Outbox& outbox);
  ~Reclaimer();
  Reclaimer(const Reclaimer&) = delete;
  Reclaimer& operator=(const Reclaimer&) = delete;

  // Returns true if a session with memory on this GPU has ended. Waits for some seconds at most, and not at
  // all if no session is abandoned.
  bool reclaim(int gpu, Reason reason);
  // Call before the program is told how much memory is free: if it has just started, it may be the successor
  // of one that was killed and whose memory counts as used until somebody wants it.
  void before_report(int gpu);

 private:
  using Clock = std::chrono::steady_clock;
  const Clock::time_point started_ = Clock::now();
  Control* const control_;
  const Outbox& outbox_;
  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  uint64_t question_ = 0;
  server::packet::Reclaimed answer_;
};

}  // namespace gpupool::worker
