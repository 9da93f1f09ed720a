#include "server/softgpu/runtime/hardware_queue.h"

#include "server/softgpu/runtime/stream.h"

namespace gpupool::softgpu {

HardwareQueue::HardwareQueue() = default;
HardwareQueue::~HardwareQueue() = default;

void HardwareQueue::wait_for_place(uint32_t limit) {
  known_left_ = left_.load(std::memory_order_acquire);
  if (entered_ - known_left_ < limit || spin_while(left_, known_left_)) {
    known_left_ = left_.load(std::memory_order_acquire);
    return;
  }
  blocked_.store(true, std::memory_order_seq_cst);
  while ((known_left_ = left_.load(std::memory_order_seq_cst), entered_ - known_left_ >= limit)) futex_wait(left_, known_left_);
  blocked_.store(false, std::memory_order_relaxed);
}

void HardwareQueue::wake() { futex_wake_all(left_); }

}  // namespace gpupool::softgpu
