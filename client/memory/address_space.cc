#include "client/memory/address_space.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>

namespace gpupool::client {
namespace {

std::atomic<uint64_t> next_id{1};  // allocation ids, shared by all sessions
constexpr uint64_t kBlock = 512;   // bytes; cuMemAlloc aligns to at least 256, NVIDIA's driver to 512

uint64_t round_up(uint64_t value, uint64_t to) {
  return (value + to - 1) / to * to;
}

// Reserves addresses in this process; false: they are not free.
bool take_from_process(uint64_t base, uint64_t size) {
  void* requested = reinterpret_cast<void*>(static_cast<uintptr_t>(base));
  void* got = mmap(requested, size, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (got == MAP_FAILED) return false;
  if (got == requested) return true;
  munmap(got, size);  // kernels before 4.17 treat MAP_FIXED_NOREPLACE as a hint
  return false;
}

}  // namespace

uint64_t AddressSpace::new_id() {
  return next_id.fetch_add(1);
}

bool AddressSpace::is_free(uint64_t base, uint64_t size) {
  if (!take_from_process(base, size)) return false;
  munmap(reinterpret_cast<void*>(static_cast<uintptr_t>(base)), size);
  return true;
}

bool AddressSpace::adopt(uint64_t base, uint64_t size, uint64_t granularity) {
  // The server chose these values and is not trusted.
  const bool whole =
      base != 0 && std::has_single_bit(granularity) && base % granularity == 0 && size % granularity == 0;
  if (!whole || !take_from_process(base, size)) return false;
  std::lock_guard lock(mutex_);
  base_ = base;
  size_ = size;
  granularity_ = granularity;
  free_[base] = size;
  return true;
}

void AddressSpace::insert_free(std::map<uint64_t, uint64_t>& free, uint64_t address, uint64_t size) {
  auto next = free.lower_bound(address);
  if (next != free.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == address) {
      address = previous->first;
      size += previous->second;
      free.erase(previous);
    }
  }
  if (next != free.end() && address + size == next->first) {
    size += next->second;
    free.erase(next);
  }
  free[address] = size;
}

std::optional<uint64_t> AddressSpace::take_range(uint64_t bytes, uint64_t alignment, uint64_t requested) {
  auto fit = [&](std::map<uint64_t, uint64_t>::iterator hole, uint64_t at) {
    return at >= hole->first && at - hole->first <= hole->second &&
           hole->second - (at - hole->first) >= bytes;
  };
  auto take = [&](std::map<uint64_t, uint64_t>::iterator hole, uint64_t at) {
    const auto [start, length] = *hole;
    free_.erase(hole);
    if (at > start) free_[start] = at - start;
    if (start + length > at + bytes) free_[at + bytes] = start + length - at - bytes;
    return at;
  };
  if (requested && requested % alignment == 0) {
    auto hole = free_.upper_bound(requested);
    if (hole != free_.begin() && fit(--hole, requested)) return take(hole, requested);
  }
  for (auto hole = free_.begin(); hole != free_.end(); ++hole) {
    const uint64_t at = round_up(hole->first, alignment);
    if (fit(hole, at)) return take(hole, at);
  }
  return std::nullopt;
}

std::optional<uint64_t> AddressSpace::reserve_host(uint64_t bytes) {
  const uint64_t size = round_up(bytes, granularity_);
  if (bytes == 0 || size < bytes) return std::nullopt;
  std::lock_guard lock(mutex_);
  for (auto hole = free_.rbegin(); hole != free_.rend(); ++hole) {
    if (hole->second < size) continue;
    const uint64_t at = (hole->first + hole->second - size) / granularity_ * granularity_;
    if (at < hole->first) continue;
    const auto taken = take_range(size, granularity_, at);
    if (taken != at) return std::nullopt;
    host_places_[at] = size;
    if (at < lowest_host_.load()) lowest_host_ = at;
    return at;
  }
  return std::nullopt;
}

void AddressSpace::unreserve_host(uint64_t address, uint64_t sequence) {
  std::lock_guard lock(mutex_);
  const auto found = host_places_.find(address);
  if (found == host_places_.end()) return;
  if (sequence)
    pending_.push_back({sequence, address, found->second, true});
  else
    return_range(address, found->second);
  host_places_.erase(found);
  lowest_host_ = host_places_.empty() ? UINT64_MAX : host_places_.begin()->first;
}

std::optional<uint64_t> AddressSpace::host_place(uint64_t address) const {
  std::lock_guard lock(mutex_);
  auto found = host_places_.upper_bound(address);
  if (found == host_places_.begin()) return std::nullopt;
  --found;
  return address - found->first < found->second ? std::optional(found->first) : std::nullopt;
}

void AddressSpace::return_range(uint64_t address, uint64_t bytes) {
  insert_free(free_, address, bytes);
}

AddressSpace::Slabs::iterator AddressSpace::slab_of(uint64_t address) {
  auto slab = slabs_.upper_bound(address);
  if (slab == slabs_.begin()) return slabs_.end();
  --slab;
  return address - slab->first < slab->second.size ? slab : slabs_.end();
}

void AddressSpace::update_free_index(const Slabs::value_type& slab) {
  const auto key =
      std::tuple(slab.second.device, slab.second.context, slab.second.managed, slab.second.size, slab.first);
  if (slab.second.free.empty() || !slab.second.mapped)
    slabs_with_free_blocks_.erase(key);
  else
    slabs_with_free_blocks_.insert(key);
}

void AddressSpace::set_idle(Slab& slab, bool idle) {
  if (slab.idle == idle) return;
  slab.idle = idle;
  uint64_t& bytes = idle_[slab.device];
  bytes = idle ? bytes + slab.size : bytes - slab.size;
}

AddressSpace::Slabs::iterator AddressSpace::erase_slab(Slabs::iterator slab) {
  set_idle(slab->second, false);
  slab->second.free.clear();
  update_free_index(*slab);
  return slabs_.erase(slab);
}

// Takes a block from a slab of the size that a new slab for this block would have, so that small blocks do
// not keep large mappings alive.
std::optional<uint64_t> AddressSpace::take_block(uint64_t size, const Allocation& about) {
  const uint64_t whole = round_up(size, granularity_);
  const Device* const device = about.device;
  for (auto key = slabs_with_free_blocks_.lower_bound({device, about.context, about.managed, whole, 0});
       key != slabs_with_free_blocks_.end(); ++key) {
    const auto& [its_device, its_context, is_managed, its_size, start] = *key;
    if (its_device != device || its_context != about.context || is_managed != about.managed ||
        its_size != whole)
      break;
    auto& slab = *slabs_.find(start);
    auto& free = slab.second.free;
    const auto hole = std::find_if(free.begin(), free.end(), [&](const auto& h) { return h.second >= size; });
    if (hole == free.end()) continue;
    const auto [address, length] = *hole;
    free.erase(hole);
    if (length > size) free[address + size] = length - size;
    slab.second.used += size;
    slab.second.live += size;
    set_idle(slab.second, false);
    update_free_index(slab);
    return address;
  }
  return std::nullopt;
}

std::optional<AddressSpace::Placement> AddressSpace::take_slab_block(uint64_t size, const Allocation& about) {
  if (const auto block = take_block(size, about)) return Placement{*block};
  const uint64_t whole = round_up(size, granularity_);
  const auto at = take_range(whole, granularity_, 0);
  if (!at) return std::nullopt;
  Slab slab{whole, about.device, about.context, size, size, {}};
  slab.managed = about.managed;
  if (whole > size) slab.free[*at + size] = whole - size;
  slabs_.emplace(*at, std::move(slab));
  return Placement{*at, *at, whole};
}

std::optional<AddressSpace::Placement> AddressSpace::allocate(uint64_t bytes, uint64_t alignment,
                                                              const Allocation& about) {
  if (bytes == 0 || bytes > size_) return std::nullopt;
  std::lock_guard lock(mutex_);
  Placement place;
  if (bytes > kLargestBlock) {
    const uint64_t size = round_up(bytes, granularity_);
    const auto at = take_range(size, std::max(alignment, granularity_), 0);
    if (!at) return std::nullopt;
    place = {*at, *at, size};
  } else {
    const uint64_t size = round_up(bytes, std::max(alignment, kBlock));
    const auto taken = take_slab_block(size, about);
    if (!taken) return std::nullopt;
    place = *taken;
    block_size_[place.address] = size;
  }
  Allocation allocation = about;
  allocation.address = place.address;
  allocation.size = bytes;
  allocation.id = new_id();
  allocations_[place.address] = allocation;
  return place;
}

void AddressSpace::mapped(const Placement& place) {
  std::lock_guard lock(mutex_);
  const auto slab = slabs_.find(place.map_address);
  if (slab == slabs_.end()) return;
  slab->second.mapped = true;
  update_free_index(*slab);
}

void AddressSpace::abandon(uint64_t address) {
  std::lock_guard lock(mutex_);
  const auto found = allocations_.find(address);
  if (found == allocations_.end()) return;
  if (const auto slab = slab_of(address); slab != slabs_.end()) {
    return_range(slab->first, slab->second.size);
    erase_slab(slab);
    block_size_.erase(address);
  } else {
    return_range(address, round_up(found->second.size, granularity_));
  }
  allocations_.erase(found);
}

std::optional<AddressSpace::Release> AddressSpace::release(uint64_t address, uint64_t most_idle) {
  std::lock_guard lock(mutex_);
  const auto found = allocations_.find(address);
  if (found == allocations_.end() || found->second.foreign || found->second.pool_memory) return std::nullopt;
  const uint64_t bytes = found->second.size;
  allocations_.erase(found);
  const auto block = block_size_.find(address);
  if (block == block_size_.end()) return Release{address, round_up(bytes, granularity_)};
  const auto slab = slab_of(address);
  slab->second.live -= block->second;
  if (slab->second.live != 0) return Release{address, 0};
  if (idle_[slab->second.device] + slab->second.size <= most_idle) {
    set_idle(slab->second, true);
    return Release{address, 0};
  }
  // The last live block: unmap the slab, including blocks whose frees have not retired.
  const Release whole{slab->first, slab->second.size};
  block_size_.erase(block);
  erase_slab(slab);
  return whole;
}

uint64_t AddressSpace::idle_bytes(const Device* device) const {
  std::lock_guard lock(mutex_);
  const auto found = idle_.find(device);
  return found == idle_.end() ? 0 : found->second;
}

std::vector<AddressSpace::Release> AddressSpace::take_idle(const Device* device) {
  std::lock_guard lock(mutex_);
  std::vector<Release> idle;
  for (auto slab = slabs_.begin(); slab != slabs_.end();) {
    if (slab->second.device != device || slab->second.live != 0) {
      ++slab;
      continue;
    }
    idle.push_back({slab->first, slab->second.size});
    slab = erase_slab(slab);
  }
  return idle;
}

void AddressSpace::retire_after(const Release& release, uint64_t sequence) {
  std::lock_guard lock(mutex_);
  uint64_t size = release.unmap_size;
  if (const auto block = block_size_.find(release.address); block != block_size_.end()) {
    size = block->second;
    block_size_.erase(block);
  }
  pending_.push_back({sequence, release.address, size, release.unmap_size != 0});
}

void AddressSpace::retired(uint64_t sequence) {
  std::lock_guard lock(mutex_);
  // Commands of different threads may be noted slightly out of order. A late entry only delays the reuse of
  // addresses.
  while (!pending_.empty() && pending_.front().sequence <= sequence) {
    const Pending gone = pending_.front();
    pending_.pop_front();
    if (gone.whole) {
      return_range(gone.address, gone.size);
    } else if (const auto slab = slab_of(gone.address); slab != slabs_.end()) {
      insert_free(slab->second.free, gone.address, gone.size);
      slab->second.used -= gone.size;
      update_free_index(*slab);
    }
  }
}

void AddressSpace::add_foreign(const Allocation& allocation) {
  std::lock_guard lock(mutex_);
  Allocation& entry = allocations_[allocation.address];
  entry = allocation;
  entry.foreign = true;
  entry.id = new_id();
}

void AddressSpace::forget_foreign(uint64_t address) {
  std::lock_guard lock(mutex_);
  if (const auto found = allocations_.find(address); found != allocations_.end() && found->second.foreign)
    allocations_.erase(found);
}

void AddressSpace::set_sync_memops(uint64_t address, bool on) {
  std::lock_guard lock(mutex_);
  if (const auto found = allocations_.find(address); found != allocations_.end())
    found->second.sync_memops = on;
}

bool AddressSpace::overlaps(uint64_t address, uint64_t bytes) const {
  const uint64_t end = address + bytes;
  if (address < base_ + size_ && base_ < end) return true;
  std::lock_guard lock(mutex_);
  const auto next = allocations_.lower_bound(address);
  if (next != allocations_.end() && next->first < end) return true;
  return next != allocations_.begin() && std::prev(next)->first + std::prev(next)->second.size > address;
}

std::optional<Allocation> AddressSpace::find(uint64_t address) const {
  std::lock_guard lock(mutex_);
  auto found = allocations_.upper_bound(address);
  if (found == allocations_.begin()) return std::nullopt;
  --found;
  if (address - found->first >= found->second.size) return std::nullopt;
  return found->second;
}

std::optional<uint64_t> AddressSpace::reserve(uint64_t bytes, uint64_t alignment, uint64_t requested) {
  if (bytes == 0) return std::nullopt;  // would fit behind the last address
  std::lock_guard lock(mutex_);
  const auto at = take_range(bytes, std::max(alignment, granularity_), requested);
  if (at) reservations_[*at] = bytes;
  return at;
}

bool AddressSpace::is_reserved(uint64_t address, uint64_t bytes) const {
  std::lock_guard lock(mutex_);
  auto found = reservations_.upper_bound(address);
  if (found == reservations_.begin()) return false;
  --found;
  const uint64_t offset = address - found->first;
  return offset <= found->second && found->second - offset >= bytes;
}

bool AddressSpace::unreserve(uint64_t address, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  const auto found = reservations_.find(address);
  if (found == reservations_.end() || found->second != bytes) return false;
  reservations_.erase(found);
  return_range(address, bytes);
  return true;
}

void AddressSpace::forget_context(uint64_t context, uint64_t sequence) {
  std::lock_guard lock(mutex_);
  for (auto it = allocations_.begin(); it != allocations_.end();) {
    if (it->second.context != context) {
      ++it;
      continue;
    }
    const bool maps = !it->second.foreign && !it->second.pool_memory && !block_size_.count(it->first);
    if (maps) pending_.push_back({sequence, it->first, round_up(it->second.size, granularity_), true});
    block_size_.erase(it->first);
    it = allocations_.erase(it);
  }
  std::erase_if(large_spans_, [&](const auto& span) {
    if (span.second.context == context) pending_.push_back({sequence, span.first, span.second.size, true});
    return span.second.context == context;
  });
  for (auto it = slabs_.begin(); it != slabs_.end();) {
    if (it->second.context != context) {
      ++it;
      continue;
    }
    pending_.push_back({sequence, it->first, it->second.size, true});
    it = erase_slab(it);
  }
}

}  // namespace gpupool::client
