#include "server/worker/memory/device_windows.h"

#include <unistd.h>

namespace gpupool::worker {

using transport::DirectMemory;

Result<DirectMemory::Region> DeviceWindows::add(uint64_t start, uint64_t bytes, bool cpu_can_access) {
  auto* const memory = reinterpret_cast<void*>(start);
  if (cpu_can_access) return memory_.add(memory, bytes, DirectMemory::Access::local);
  int descriptor = -1;
  if (!api_.cuMemGetHandleForAddressRange ||
      api_.cuMemGetHandleForAddressRange(&descriptor, start, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0) !=
          CUDA_SUCCESS) {
    return Error{ErrorCode::unavailable, "the driver cannot export the memory as a dma-buf"};
  }
  auto region = memory_.add(memory, bytes, DirectMemory::Access::local, descriptor);
  ::close(descriptor);
  return region;
}

bool DeviceWindows::use(uint64_t start, uint64_t bytes, bool cpu_can_access, DeviceSpan* span) {
  const std::lock_guard lock(mutex_);
  auto known = windows_.find(start);
  if (known == windows_.end()) {
    if (refused_ || (windows_.size() >= kMostWindows && !make_room())) return false;
    auto region = add(start, bytes, cpu_can_access);
    while (!region && make_room()) region = add(start, bytes, cpu_can_access);
    refused_ = !region;
    if (!region) return false;
    order_.push_front(start);
    known = windows_
                .emplace(start, Window{start + bytes, region->local_key,
                                       std::make_shared<const DirectMemory::Region>(*region), order_.begin()})
                .first;
  }
  Window& window = known->second;
  order_.splice(order_.begin(), order_, window.used);
  *span = {window.end, window.key, window.region};
  return true;
}

// Evicts the least recently used window that is not in use. Returns false if there is none.
bool DeviceWindows::make_room() {
  for (auto start = order_.rbegin(); start != order_.rend(); ++start) {
    const auto window = windows_.find(*start);
    if (window->second.region.use_count() != 1) continue;
    memory_.remove(*window->second.region);
    order_.erase(window->second.used);
    windows_.erase(window);
    return true;
  }
  return false;
}

void DeviceWindows::drop(uint64_t start, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  for (auto window = windows_.lower_bound(start);
       window != windows_.end() && window->first - start < bytes;) {
    // No copy uses the window any more, because frees wait for the streams. If a client frees memory earlier,
    // its copy fails.
    memory_.remove(*window->second.region);
    order_.erase(window->second.used);
    window = windows_.erase(window);
    refused_ = false;
  }
}

}  // namespace gpupool::worker
