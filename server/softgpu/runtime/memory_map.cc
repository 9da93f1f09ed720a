#include "server/softgpu/runtime/memory_map.h"

#include <iterator>
#include <mutex>
#include <shared_mutex>

namespace gpupool::softgpu {

AccessLock::AccessLock() {
  pthread_rwlockattr_t attributes;
  pthread_rwlockattr_init(&attributes);
  pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
  pthread_rwlock_init(&lock_, &attributes);
  pthread_rwlockattr_destroy(&attributes);
}

MemoryMap::Ranges::const_iterator MemoryMap::containing(uint64_t address) const {
  auto it = ranges_.upper_bound(address);
  if (it == ranges_.begin()) return ranges_.end();
  --it;
  return address - it->first < it->second.size ? it : ranges_.end();
}

bool MemoryMap::tiles(uint64_t address, uint64_t size) const {
  uint64_t next = address;
  for (auto it = ranges_.find(address); it != ranges_.end() && it->first == next; ++it) {
    next += it->second.size;
    if (next == address + size) return true;
    if (next > address + size) return false;
  }
  return false;
}

bool MemoryMap::add(MemoryRange range) {
  std::lock_guard guard(index_lock_);
  auto next = ranges_.lower_bound(range.address);
  if (next != ranges_.end() && next->first - range.address < range.size) return false;
  if (next != ranges_.begin()) {
    const MemoryRange& before = std::prev(next)->second;
    if (range.address - before.address < before.size) return false;
  }
  range.id = next_id_++;
  ranges_.emplace_hint(next, range.address, std::move(range));
  return true;
}

std::optional<MemoryRange> MemoryMap::find(uint64_t address) const {
  std::shared_lock guard(index_lock_);
  auto it = containing(address);
  if (it == ranges_.end()) return std::nullopt;
  return it->second;
}

std::vector<uint64_t> MemoryMap::starts_within(uint64_t address, uint64_t size) const {
  std::shared_lock guard(index_lock_);
  std::vector<uint64_t> starts;
  if (!tiles(address, size)) return starts;
  for (auto it = ranges_.find(address); it != ranges_.end() && it->first < address + size; ++it) {
    starts.push_back(it->first);
  }
  return starts;
}

std::vector<MemoryRange> MemoryMap::take_context(uint64_t context) {
  std::lock_guard guard(index_lock_);
  std::vector<MemoryRange> taken;
  for (auto it = ranges_.begin(); it != ranges_.end();) {
    if (it->second.context == context && it->second.kind != MemoryKind::pool) {
      taken.push_back(std::move(it->second));
      it = ranges_.erase(it);
    } else {
      ++it;
    }
  }
  return taken;
}

bool MemoryMap::accessible(uint64_t address, uint64_t size, bool write, std::optional<int> device) const {
  if (size == 0) return true;
  if (address + size < address) return false;
  std::shared_lock guard(index_lock_);
  auto it = containing(address);
  for (uint64_t end = address + size; it != ranges_.end(); ++it) {
    const MemoryRange& range = it->second;
    if (!range.readable || (write && !range.writable)) return false;
    if (device && range.kind == MemoryKind::mapped && !range.grants(*device, write)) return false;
    const uint64_t range_end = range.address + range.size;
    if (range_end >= end) return true;
    const auto next = std::next(it);
    if (range.kind != MemoryKind::mapped || next == ranges_.end() || next->first != range_end ||
        next->second.kind != MemoryKind::mapped) {
      return false;
    }
  }
  return false;
}

bool MemoryMap::overlaps(uint64_t address, uint64_t size) const {
  std::shared_lock guard(index_lock_);
  if (containing(address) != ranges_.end()) return true;
  auto next = ranges_.lower_bound(address);
  return next != ranges_.end() && next->first - address < size;
}

}  // namespace gpupool::softgpu
