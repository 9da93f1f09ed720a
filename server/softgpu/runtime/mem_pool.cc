#include "server/softgpu/runtime/mem_pool.h"

#include <algorithm>
#include <shared_mutex>
#include <vector>

#include "server/softgpu/runtime/device.h"
#include "server/softgpu/runtime/runtime.h"

namespace gpupool::softgpu {
namespace {

uint64_t block_size(uint64_t size) {
  const uint64_t step = size > DeviceHeap::kSmallLimit ? DeviceHeap::kLargeMultiple : DeviceHeap::kAlignment;
  return (size + step - 1) / step * step;
}

}  // namespace

MemoryPool::MemoryPool(Device& device, uint64_t max_size) : device_(device), max_size_(max_size) {}

MemoryPool::~MemoryPool() {
  trim(0);
}

std::optional<uint64_t> MemoryPool::allocate(uint64_t size) {
  const uint64_t wanted = block_size(size);
  {
    std::lock_guard guard(mutex_);
    // Reuse a cached block if at most a quarter of it would stay unused.
    const auto it = free_.lower_bound(wanted);
    if (it != free_.end() && it->first <= wanted + wanted / 3) {
      const auto [block, address] = *it;
      free_.erase(it);
      used_.emplace(address, block);
      used_bytes_ += block;
      used_high_ = std::max(used_high_, used_bytes_);
      return address;
    }
    if (max_size_ != 0 && reserved_bytes_ + wanted > max_size_) return std::nullopt;
  }
  const auto address = device_.allocate(wanted);
  if (!address) return std::nullopt;
  std::lock_guard guard(mutex_);
  used_.emplace(*address, wanted);
  used_bytes_ += wanted;
  reserved_bytes_ += wanted;
  used_high_ = std::max(used_high_, used_bytes_);
  reserved_high_ = std::max(reserved_high_, reserved_bytes_);
  return address;
}

void MemoryPool::free_block(uint64_t address) {
  std::lock_guard guard(mutex_);
  const auto it = used_.find(address);
  if (it == used_.end()) return;
  used_bytes_ -= it->second;
  free_.emplace(it->second, address);
  used_.erase(it);
}

void MemoryPool::handle_destroyed() {
  {
    std::lock_guard guard(mutex_);
    threshold_ = 0;
  }
  trim(0);
}

bool MemoryPool::trim_locked(uint64_t keep, std::vector<uint64_t>& freed) {
  while (reserved_bytes_ > keep && !free_.empty()) {
    const auto biggest = std::prev(free_.end());
    reserved_bytes_ -= biggest->first;
    freed.push_back(biggest->second);
    free_.erase(biggest);
  }
  return !freed.empty();
}

bool MemoryPool::trim(uint64_t keep) {
  std::vector<uint64_t> freed;
  {
    std::lock_guard guard(mutex_);
    if (!trim_locked(keep, freed)) return false;
  }
  std::lock_guard access(runtime().memory().access_lock());
  for (const uint64_t address : freed) device_.heap().free(address);
  return true;
}

void MemoryPool::trim_to_threshold() {
  uint64_t keep;
  {
    std::lock_guard guard(mutex_);
    if (free_.empty() || reserved_bytes_ <= threshold_) return;
    keep = threshold_;
  }
  trim(keep);
}

void MemoryPool::set_access(int device, CUmemAccess_flags flags) {
  std::lock_guard guard(mutex_);
  access_[device] = flags;
}

CUmemAccess_flags MemoryPool::access(int device) const {
  if (device == device_.index()) return CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  std::lock_guard guard(mutex_);
  const auto found = access_.find(device);
  return found == access_.end() ? CU_MEM_ACCESS_FLAGS_PROT_NONE : found->second;
}

CUresult MemoryPool::attribute(CUmemPool_attribute attribute, void* value) const {
  std::lock_guard guard(mutex_);
  const auto put_int = [&](int number) { *static_cast<int*>(value) = number; };
  const auto put_u64 = [&](uint64_t number) { *static_cast<cuuint64_t*>(value) = number; };
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES: put_int(reuse_event_); break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: put_int(reuse_opportunistic_); break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: put_int(reuse_internal_); break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: put_u64(threshold_); break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: put_u64(reserved_bytes_); break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: put_u64(reserved_high_); break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: put_u64(used_bytes_); break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: put_u64(used_high_); break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult MemoryPool::set_attribute(CUmemPool_attribute attribute, const void* value) {
  std::lock_guard guard(mutex_);
  const auto flag = [&] { return *static_cast<const int*>(value) != 0; };
  const auto number = [&] { return static_cast<uint64_t>(*static_cast<const cuuint64_t*>(value)); };
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES: reuse_event_ = flag(); break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: reuse_opportunistic_ = flag(); break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: reuse_internal_ = flag(); break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: threshold_ = number(); break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      if (number() != 0) return CUDA_ERROR_INVALID_VALUE;
      reserved_high_ = reserved_bytes_;
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (number() != 0) return CUDA_ERROR_INVALID_VALUE;
      used_high_ = used_bytes_;
      break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

void FreeOp::start() {
  if (auto range = runtime().memory().take(address_, [](const MemoryRange&) { return true; })) {
    runtime().release(*range);
  }
  complete();
}

}  // namespace gpupool::softgpu
