#include "server/softgpu/runtime/hardware_queue.h"

#include "server/softgpu/runtime/stream.h"

namespace gpupool::softgpu {

HardwareQueue::HardwareQueue() = default;
HardwareQueue::~HardwareQueue() = default;

void HardwareQueue::wait_for_space(uint32_t limit) {
  known_removed_ = removed_.load(std::memory_order_acquire);
  if (added_ - known_removed_ < limit || spin_while(removed_, known_removed_)) {
    known_removed_ = removed_.load(std::memory_order_acquire);
    return;
  }
  blocked_.store(true, std::memory_order_seq_cst);
  while ((known_removed_ = removed_.load(std::memory_order_seq_cst), added_ - known_removed_ >= limit))
    futex_wait(removed_, known_removed_);
  blocked_.store(false, std::memory_order_relaxed);
}

void HardwareQueue::wake() {
  futex_wake_all(removed_);
}

}  // namespace gpupool::softgpu
