// One of a context's hardware queues: counts incomplete operations, and knows the stream of the last one.
//
// Streams share queues (Context::assign_queue). A full queue blocks the thread that enters an operation,
// while that thread holds the context's lock; NVIDIA's driver, too, blocks calls of other threads then
// (docs/softgpu-rules.md says which). So code that completes operations must not take the context's lock.
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
  // Adds an operation; blocks while the queue holds `limit` operations. With the context's lock held.
  void add_operation(uint32_t limit) {
    if (added_ - known_removed_ >= limit) [[unlikely]]
      wait_for_space(limit);
    ++added_;
  }
  // Removes a completed operation. Any thread.
  void remove_operation() {
    removed_.fetch_add(1, std::memory_order_seq_cst);
    if (blocked_.load(std::memory_order_seq_cst)) [[unlikely]]
      wake();
  }

  Ref<Stream> last_stream;  // stream of the last operation; guarded by the context's lock

 private:
  void wait_for_space(uint32_t limit);
  void wake();

  // The counters wrap around. The context's lock guards added_ and known_removed_.
  uint32_t added_ = 0;
  uint32_t known_removed_ = 0;  // last value read of removed_, whose cache line the completing threads write
  alignas(64) std::atomic<uint32_t> removed_{0};
  std::atomic<bool> blocked_{false};
};

}  // namespace gpupool::softgpu
