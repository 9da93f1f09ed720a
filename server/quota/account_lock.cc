#include "server/quota/account_lock.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace gpupool::quota {
namespace {

using Clock = std::chrono::steady_clock;

// The lock word: its owner (slot + 1; 0: free), and above it a count of acquisitions, so that two of one
// worker differ.
constexpr uint32_t kOwnerMask = 0x7ff;
constexpr uint32_t kOneAcquisition = kOwnerMask + 1;
static_assert(kMaxSessionsPerTenant < kOwnerMask);

constexpr int kLooks = 100;  // before sleeping: the lock is held for about a microsecond

uint32_t* word_of(std::atomic<uint32_t>& word) {
  static_assert(sizeof word == sizeof(uint32_t));
  return reinterpret_cast<uint32_t*>(&word);
}

// Sleeps until the word changes, a wakeup comes, or the timeout expires.
void sleep_while(std::atomic<uint32_t>& word, uint32_t value, Clock::duration longest) {
  const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(longest).count();
  const timespec time{static_cast<time_t>(nanoseconds / 1'000'000'000),
                      static_cast<long>(nanoseconds % 1'000'000'000)};
  ::syscall(SYS_futex, word_of(word), FUTEX_WAIT, value, &time, nullptr, 0);
}

void unlock(Account& account, uint32_t held) {
  account.memory_lock.compare_exchange_strong(held, held & ~kOwnerMask);
  if (account.memory_lock_waiters.exchange(0) != 0) {
    ::syscall(SYS_futex, word_of(account.memory_lock), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
}

}  // namespace

AccountLock::AccountLock(Account& account, uint32_t slot, std::chrono::milliseconds patience)
    : account_(account) {
  const auto stop = Clock::now() + patience;
  auto& word = account.memory_lock;
  for (int look = 0;; ++look) {
    uint32_t now = word.load();
    if ((now & kOwnerMask) == 0) {
      held_ = word.compare_exchange_strong(now, now + kOneAcquisition + slot + 1);
      if (held_) return;
    } else if (look >= kLooks) {
      const auto left = stop - Clock::now();
      if (left <= Clock::duration::zero()) return;
      account.memory_lock_waiters.store(1);
      sleep_while(word, now, left);
    }
  }
}

AccountLock::~AccountLock() {
  if (held_) unlock(account_, account_.memory_lock.load());
}

void AccountLock::release_for_dead(Account& account, uint32_t slot) {
  const uint32_t now = account.memory_lock.load();
  if ((now & kOwnerMask) == slot + 1) unlock(account, now);
}

}  // namespace gpupool::quota
