// A mutex for sections of some tens of instructions: a thread that finds it taken tries again for a moment before it
// sleeps, since sleeping and waking cost a hundred times what is waited for. Internal to exec/.
#pragma once
#include <mutex>

namespace gpupool::softgpu {

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class BriefMutex {
 public:
  void lock() {
    for (int i = 0; i < 100; ++i) {
      if (mutex_.try_lock()) return;
      pause_cpu();
    }
    mutex_.lock();
  }
  void unlock() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

}  // namespace gpupool::softgpu
