// Free list for objects that one thread creates and another deletes, such as grids and operations; the
// general allocator would take its slow path through another thread's arena for each. A class derives from
// Recycled<itself>; up to kMaxKept freed objects are kept per class. Thread-safe.
#pragma once
#include <cstddef>
#include <mutex>
#include <new>

#include "server/softgpu/exec/spin_lock.h"

namespace gpupool::softgpu {

template <class T>
class Recycled {
 public:
  static void* operator new(size_t bytes) {
    if (bytes == sizeof(T)) {
      std::lock_guard lock(mutex_);
      if (Free* const first = free_) {
        free_ = first->next;
        --count_;
        return first;
      }
    }
    return ::operator new(bytes, std::align_val_t{alignof(T)});
  }
  static void operator delete(void* place, size_t bytes) {
    if (bytes == sizeof(T)) {
      std::lock_guard lock(mutex_);
      if (count_ < kMaxKept) {
        free_ = new (place) Free{free_};
        ++count_;
        return;
      }
    }
    ::operator delete(place, std::align_val_t{alignof(T)});
  }

 private:
  struct Free {
    Free* next;
  };
#if defined(__SANITIZE_ADDRESS__)
  static constexpr size_t kMaxKept = 0;  // keep none, so that AddressSanitizer detects use after free
#else
  static constexpr size_t kMaxKept = 4096;
#endif
  static inline constinit SpinLock mutex_;
  static inline constinit Free* free_ = nullptr;
  static inline constinit size_t count_ = 0;
};

}  // namespace gpupool::softgpu
