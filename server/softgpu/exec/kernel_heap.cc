// malloc and free in kernels: one heap per process, in host memory inside the reserved range. Thread-safe.
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <utility>

#include "server/softgpu/exec/grid.h"
#include "server/softgpu/memory/address_space.h"

namespace gpupool::softgpu {
namespace {

class KernelHeap {
 public:
  uint64_t allocate(uint64_t bytes) try {
    std::lock_guard lock(mutex_);
    if (bytes == 0 || bytes > size_) return 0;
    if (base_ == 0) {
      const auto memory = allocate_host(size_, page_bytes());
      if (!memory) return 0;
      base_ = *memory;
      insert(base_, size_);
    }
    bytes = round_up(bytes, kAlignment);
    const auto best = by_size_.lower_bound({bytes, 0});
    if (best == by_size_.end()) return 0;
    const auto [piece, address] = *best;
    by_size_.erase(best);
    free_.erase(address);
    if (piece > bytes) insert(address + bytes, piece - bytes);
    live_.emplace(address, bytes);
    return address;
  } catch (const std::bad_alloc&) {
    return 0;
  }

  void release(uint64_t address) {
    std::lock_guard lock(mutex_);
    const auto found = live_.find(address);
    if (found == live_.end()) return;  // undefined in CUDA; ignored here
    uint64_t bytes = found->second;
    live_.erase(found);
    auto next = free_.lower_bound(address);
    if (next != free_.end() && next->first == address + bytes) {
      bytes += next->second;
      by_size_.erase({next->second, next->first});
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == address) {
        address = before->first;
        bytes += before->second;
        by_size_.erase({before->second, before->first});
        free_.erase(before);
      }
    }
    insert(address, bytes);
  }

  bool set_size(uint64_t bytes) {
    std::lock_guard lock(mutex_);
    if (base_ != 0) return bytes == size_;
    size_ = round_up(bytes, page_bytes());
    return true;
  }
  uint64_t size() {
    std::lock_guard lock(mutex_);
    return size_;
  }
  void reset() {
    std::lock_guard lock(mutex_);
    if (base_ != 0) free_host(base_, size_);
    base_ = 0;
    live_.clear();
    free_.clear();
    by_size_.clear();
  }

 private:
  static constexpr uint64_t kAlignment = 16;

  void insert(uint64_t address, uint64_t bytes) {
    free_.emplace(address, bytes);
    by_size_.emplace(bytes, address);
  }

  std::mutex mutex_;
  uint64_t base_ = 0, size_ = 8 << 20;
  std::map<uint64_t, uint64_t> live_, free_;  // address -> bytes
  std::set<std::pair<uint64_t, uint64_t>> by_size_;
};

KernelHeap& heap() {
  static auto* instance = new KernelHeap;
  return *instance;
}

}  // namespace

bool set_kernel_heap_bytes(uint64_t bytes) {
  return heap().set_size(bytes);
}
uint64_t kernel_heap_bytes() {
  return heap().size();
}
void reset_kernel_heap() {
  heap().reset();
}

}  // namespace gpupool::softgpu

extern "C" {
uint64_t softgpu_malloc(gpupool::softgpu::ThreadContext*, uint64_t bytes) {
  return gpupool::softgpu::heap().allocate(bytes);
}
void softgpu_free(gpupool::softgpu::ThreadContext*, uint64_t address) {
  gpupool::softgpu::heap().release(address);
}
}
