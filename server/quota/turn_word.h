// The word in the session page by which poold tells a worker whether it may use a GPU; one per GPU. poold
// writes it. The worker changes it once per turn, to closed, and only while the turn has the same number.
#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>

#include "server/quota/arbiter.h"

namespace gpupool::quota {

struct TurnWord {
  uint32_t word = 0;  // 2 bits of state, 3 flags, and the turn's number

  static TurnWord of(const Arbiter::Turn& turn, uint32_t number) {
    return {static_cast<uint32_t>(turn.state) | turn.bounded * kBounded | turn.single * kSingle |
            turn.wanted * kWanted | number << kNumberShift};
  }
  bool closed() const { return (word & kState) == static_cast<uint32_t>(Arbiter::Turn::State::closed); }
  bool open() const { return (word & kState) == static_cast<uint32_t>(Arbiter::Turn::State::open); }
  bool yield() const { return (word & kState) == static_cast<uint32_t>(Arbiter::Turn::State::yield); }
  bool bounded() const { return (word & kBounded) != 0; }
  bool single() const { return (word & kSingle) != 0; }
  bool wanted() const { return (word & kWanted) != 0; }
  // True if the session is alone on the GPU and has no limit: work needs no further checks.
  bool free() const {
    return (word & ~(~0u << kNumberShift)) == static_cast<uint32_t>(Arbiter::Turn::State::open);
  }
  uint32_t number() const { return word >> kNumberShift; }
  TurnWord given_up() const { return {word & ~(kState | kWanted)}; }
  bool operator==(const TurnWord&) const = default;

 private:
  static constexpr uint32_t kState = 3, kBounded = 4, kSingle = 8, kWanted = 16, kNumberShift = 5;
};

// The session page's futex. wait_for_turn_change() may return early.
inline void wake_worker(std::atomic<uint32_t>& bell) {
  bell.fetch_add(1);
  ::syscall(SYS_futex, &bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}
inline void wait_for_turn_change(std::atomic<uint32_t>& bell, uint32_t seen, std::chrono::nanoseconds most) {
  const timespec limit{static_cast<time_t>(most.count() / 1'000'000'000),
                       static_cast<long>(most.count() % 1'000'000'000)};
  ::syscall(SYS_futex, &bell, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

}  // namespace gpupool::quota
