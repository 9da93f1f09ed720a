// A spin lock for critical sections of some tens of instructions. Yields the processor if the lock is not
// free soon: its holder may have been preempted.
#pragma once
#include <sched.h>

#include <atomic>

namespace gpupool::softgpu {

// Pauses inside a loop that waits for the next few instructions of another thread.
inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class SpinLock {
 public:
  constexpr SpinLock() = default;
  void lock() noexcept {
    for (int spins = 0; locked_.exchange(true, std::memory_order_acquire);) {
      do {
        if (++spins < 64) {
          pause_cpu();
        } else {
          sched_yield();
        }
      } while (locked_.load(std::memory_order_relaxed));
    }
  }
  void unlock() noexcept { locked_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> locked_{false};
};

}  // namespace gpupool::softgpu
