#include "client/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

namespace gpupool::client {
namespace {

uint64_t round_to_pages(uint64_t bytes) {
  static const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

uint64_t bits(const void* address) { return reinterpret_cast<uintptr_t>(address); }

}  // namespace

HostMemory& host_memory() {
  static HostMemory* const only = new HostMemory;  // never destroyed: programs free in exit handlers
  return *only;
}

void* HostMemory::allocate(uint64_t bytes, unsigned flags, uint64_t context) {
  const uint64_t size = round_to_pages(bytes);
  if (size < bytes) return nullptr;
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  std::lock_guard lock(mutex_);
  allocations_[bits(memory)] = {bits(memory), bytes, flags, false, context, next_id_++};
  return memory;
}

bool HostMemory::free(void* address) {
  std::lock_guard lock(mutex_);
  const auto found = allocations_.find(bits(address));
  if (found == allocations_.end() || found->second.registered) return false;
  munmap(address, round_to_pages(found->second.size));
  allocations_.erase(found);
  return true;
}

bool HostMemory::add_registered(void* address, uint64_t bytes, unsigned flags, uint64_t context) {
  std::lock_guard lock(mutex_);
  const uint64_t begin = bits(address);
  const auto next = allocations_.upper_bound(begin);
  if (next != allocations_.end() && next->first < begin + bytes) return false;
  if (next != allocations_.begin()) {
    const auto& before = std::prev(next)->second;
    if (before.address + before.size > begin) return false;
  }
  allocations_[begin] = {begin, bytes, flags, true, context, next_id_++};
  return true;
}

bool HostMemory::remove_registered(void* address) {
  std::lock_guard lock(mutex_);
  const auto found = allocations_.find(bits(address));
  if (found == allocations_.end() || !found->second.registered) return false;
  allocations_.erase(found);
  return true;
}

std::optional<HostAllocation> HostMemory::find(uint64_t address) const {
  std::lock_guard lock(mutex_);
  auto found = allocations_.upper_bound(address);
  if (found == allocations_.begin()) return std::nullopt;
  --found;
  if (address - found->first >= found->second.size) return std::nullopt;
  return found->second;
}

bool HostMemory::is_pinned(const void* address, uint64_t bytes) const {
  const auto found = find(bits(address));
  return found && bits(address) - found->address + bytes <= found->size;
}

}  // namespace gpupool::client
