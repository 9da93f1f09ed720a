// One of a context's hardware queues: counts incomplete operations, and knows the stream of the last one.
//
// Streams share queues (Context::assign_queue). A full queue blocks the thread that enters an operation,
// while that thread holds the context's order lock. NVIDIA's driver is believed to hold its context's lock
// likewise. So code that completes operations must not take the order lock.
#pragma once
#include <atomic>
#include <cstdint>

#include "server/softgpu/runtime/object.h"

namespace gpupool::softgpu {

class Stream;

class HardwareQueue {
 public:
  HardwareQueue();
  ~HardwareQueue();
  // Adds an operation; blocks while the queue holds `limit` operations. With the order lock held.
  void enter(uint32_t limit) {
    if (entered_ - known_left_ >= limit) [[unlikely]] wait_for_place(limit);
    ++entered_;
  }
  // Removes a completed operation. Any thread.
  void leave() {
    left_.fetch_add(1, std::memory_order_seq_cst);
    if (blocked_.load(std::memory_order_seq_cst)) [[unlikely]] wake();
  }

  Ref<Stream> last_stream;  // stream of the last operation; guarded by the order lock

 private:
  void wait_for_place(uint32_t limit);
  void wake();

  // The counters wrap around. The order lock guards entered_ and known_left_.
  uint32_t entered_ = 0;
  uint32_t known_left_ = 0;  // last value read of left_, whose cache line the completing threads write
  alignas(64) std::atomic<uint32_t> left_{0};
  std::atomic<bool> blocked_{false};
};

}  // namespace gpupool::softgpu
