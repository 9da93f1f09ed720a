// Round-robin turns between processes. One word of the shared file holds the slot number of the holder. A
// process that wants the turn sets its bit in the `waiting` set; the holder passes the turn to the next
// living slot after its own and wakes only that process.
#include "server/softgpu/memory/device_turns.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <bit>
#include <condition_variable>
#include <mutex>
#include <optional>

namespace gpupool::softgpu {
namespace {

uint64_t now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

void wait_on(std::atomic<uint32_t>& word, uint32_t seen, uint64_t nanoseconds) {
  const timespec limit{static_cast<time_t>(nanoseconds / 1'000'000'000),
                       static_cast<long>(nanoseconds % 1'000'000'000)};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

class Turns final : public DeviceTurns {
 public:
  explicit Turns(SharedFile& file) : file_(file), state_(file.state()), me_(file.slot()) {}

  void acquire() override {
    std::unique_lock lock(mutex_);
    // An expired slice ends when the last thread has released it; a thread that joined now would prolong it.
    changed_.wait(lock, [this] { return !negotiating_ && !(held_ > 0 && expired_); });
    if (held_++ > 0) return;
    negotiating_ = true;
    lock.unlock();
    wait_for_turn();
    lock.lock();
    negotiating_ = false;
    expired_ = false;
    slice_end_ = now() + kSliceNanoseconds;
    changed_.notify_all();
  }

  void release() override {
    std::lock_guard lock(mutex_);
    if (--held_ > 0) return;
    pass_turn();
    changed_.notify_all();
  }

  bool keeps_turn() override {
    // If the turn was taken away as overdue, this process has to acquire it again, even if it is free and no
    // process waits.
    const bool held = state_.holder.load(std::memory_order_relaxed) == me_ + 1;
    if (held && (!anyone_waits() || now() < slice_end_.load(std::memory_order_relaxed))) return true;
    expired_ = true;
    return false;
  }

 private:
  bool anyone_waits() const {
    for (const auto& word : state_.waiting) {
      if (word.load(std::memory_order_relaxed) != 0) return true;
    }
    return false;
  }
  void set_waiting(uint32_t slot, bool waits) {
    const uint64_t bit = uint64_t{1} << (slot % 64);
    if (waits) {
      state_.waiting[slot / 64].fetch_or(bit);
    } else {
      state_.waiting[slot / 64].fetch_and(~bit);
    }
  }
  bool try_take_turn(uint32_t from) {
    if (!state_.holder.compare_exchange_strong(from, me_ + 1)) return false;
    state_.turn.fetch_add(1);
    return true;
  }

  void wait_for_turn() {
    if (!anyone_waits() && try_take_turn(0)) return;
    auto& word = state_.slots[me_].wake;
    set_waiting(me_, true);
    uint32_t watched_turn = state_.turn;
    uint64_t watched_since = now();
    for (;;) {
      const uint32_t seen = word;
      const uint32_t holder = state_.holder;
      if (holder == me_ + 1 || (holder == 0 && try_take_turn(0))) break;
      const uint64_t time = now();
      if (const uint32_t turn = state_.turn; turn != watched_turn) {
        watched_turn = turn;
        watched_since = time;
      }
      // Take over from a holder that has died or is stuck in one endless block.
      if (holder != 0 &&
          (!file_.is_slot_alive(holder - 1) || time - watched_since > kTurnTimeoutNanoseconds)) {
        if (try_take_turn(holder)) break;
        continue;
      }
      wait_on(word, seen, kTurnTimeoutNanoseconds / 4);
    }
    set_waiting(me_, false);
  }

  // Returns the next living process that waits, following this one in the circle of slots.
  std::optional<uint32_t> next_waiting() {
    for (uint32_t step = 1; step <= kMaxProcesses; ++step) {
      const uint32_t slot = (me_ + step) % kMaxProcesses;
      const uint64_t rest = state_.waiting[slot / 64].load() >> (slot % 64);
      if (rest == 0) {
        step += 63 - slot % 64;
        continue;
      }
      if (const auto skip = static_cast<uint32_t>(std::countr_zero(rest)); skip > 0) {
        step += skip - 1;
        continue;
      }
      if (slot == me_) continue;
      if (file_.is_slot_alive(slot)) return slot;
      set_waiting(slot, false);
    }
    return std::nullopt;
  }

  void pass_turn() {
    uint32_t holder = me_ + 1;
    auto next = next_waiting();
    if (!next) {
      if (!state_.holder.compare_exchange_strong(holder, 0)) return;  // taken away as overdue
      state_.turn.fetch_add(1);
      // A process may have started to wait and sleep between the search and the release.
      next = next_waiting();
      if (!next) return;
      holder = 0;
    }
    if (!state_.holder.compare_exchange_strong(holder, *next + 1)) return;
    state_.turn.fetch_add(1);
    state_.slots[*next].wake.fetch_add(1);
    wake(state_.slots[*next].wake);
  }

  SharedFile& file_;
  SharedState& state_;
  const uint32_t me_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint32_t held_ = 0;         // acquires of this process that are not released
  bool negotiating_ = false;  // one thread negotiates with the other processes, the rest wait for it
  std::atomic<bool> expired_{false};
  std::atomic<uint64_t> slice_end_{0};
};

}  // namespace

std::unique_ptr<DeviceTurns> make_turns(SharedFile& file) {
  return std::make_unique<Turns>(file);
}

}  // namespace gpupool::softgpu
