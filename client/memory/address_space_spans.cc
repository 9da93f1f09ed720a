// Spans of memory pools in the session's address range, and the allocations within them.
#include "client/memory/address_space.h"

namespace gpupool::client {

std::optional<AddressSpace::Placement> AddressSpace::reserve_span(uint64_t bytes, const Allocation& about) {
  if (bytes == 0 || bytes > size_) return std::nullopt;
  std::lock_guard lock(mutex_);
  const uint64_t size = (bytes + granularity_ - 1) / granularity_ * granularity_;
  if (size <= kLargestBlock) return take_slab_block(size, about);
  const auto at = take_range(size, granularity_, 0);
  if (!at) return std::nullopt;
  large_spans_[*at] = {size, about.context};
  return Placement{*at, *at, size};
}

void AddressSpace::abandon_span(uint64_t address) {
  std::lock_guard lock(mutex_);
  if (const auto large = large_spans_.find(address); large != large_spans_.end()) {
    return_range(address, large->second.size);
    large_spans_.erase(large);
  } else if (const auto slab = slabs_.find(address); slab != slabs_.end()) {
    return_range(address, slab->second.size);
    erase_slab(slab);
  }
}

AddressSpace::Release AddressSpace::return_span(uint64_t address, uint64_t most_idle) {
  std::lock_guard lock(mutex_);
  if (const auto large = large_spans_.find(address); large != large_spans_.end()) {
    const Release whole{address, large->second.size};
    large_spans_.erase(large);
    return whole;
  }
  const auto slab = slabs_.find(address);
  if (slab == slabs_.end()) return {address, 0};  // its context is gone
  const Release whole{address, slab->second.size};
  if (!slab->second.mapped || idle_[slab->second.device] + slab->second.size > most_idle) {
    erase_slab(slab);
    return whole;
  }
  slab->second.live = slab->second.used = 0;
  slab->second.free[address] = slab->second.size;
  set_idle(slab->second, true);
  update_free_index(*slab);
  return {address, 0};
}

void AddressSpace::add_pooled(Allocation allocation) {
  std::lock_guard lock(mutex_);
  allocation.id = new_id();
  allocations_.insert_or_assign(allocation.address, allocation);
}

std::optional<Allocation> AddressSpace::take_pooled(uint64_t address) {
  std::lock_guard lock(mutex_);
  const auto found = allocations_.find(address);
  if (found == allocations_.end() || !found->second.pool_memory) return std::nullopt;
  const Allocation taken = found->second;
  allocations_.erase(found);
  return taken;
}

}  // namespace gpupool::client
