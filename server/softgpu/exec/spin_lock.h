// A lock for some tens of instructions. Yields when it does not get the lock soon: its holder may have been preempted.
#pragma once
#include <sched.h>

#include <atomic>

namespace gpupool::softgpu {

// For loops that wait for another thread's next few instructions.
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
