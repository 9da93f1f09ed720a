// One of a context's hardware queues: how many operations of its streams are incomplete, and which stream put the last one in.
//
// Streams share queues (Context::assign_queue). A full queue blocks the thread that enters an operation. That thread holds the context's order
// lock, as NVIDIA's driver holds the context's lock, so nothing that completes an operation may need the order lock.
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
  // For one more operation; blocks while the queue holds `limit` operations. With the order lock held.
  void enter(uint32_t limit) {
    if (entered_ - known_left_ >= limit) [[unlikely]] wait_for_place(limit);
    ++entered_;
  }
  // An operation is complete. Any thread.
  void leave() {
    left_.fetch_add(1, std::memory_order_seq_cst);
    if (blocked_.load(std::memory_order_seq_cst)) [[unlikely]] wake();
  }

  Ref<Stream> last_stream;  // guarded by the order lock

 private:
  void wait_for_place(uint32_t limit);
  void wake();

  // Counters that wrap around. The first two are guarded by the order lock.
  uint32_t entered_ = 0;
  uint32_t known_left_ = 0;  // as of the last look at left_, which completing threads keep in their caches
  alignas(64) std::atomic<uint32_t> left_{0};
  std::atomic<bool> blocked_{false};
};

}  // namespace gpupool::softgpu
