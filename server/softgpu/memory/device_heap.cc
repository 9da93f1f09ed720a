#include "server/softgpu/memory/device_heap.h"

#include <utility>

namespace gpupool::softgpu {

DeviceHeap::DeviceHeap(std::shared_ptr<SharedDevice> device) : device_(std::move(device)) {}

DeviceHeap::~DeviceHeap() {
  std::set<uint64_t> granules;
  for (const auto& [address, live] : live_) {
    if (live.pooled) {
      granules.insert(address / kGranule * kGranule);
    } else {
      unmap_piece(address, live.reserved);
    }
  }
  for (const auto& [address, size] : free_by_address_) granules.insert(address / kGranule * kGranule);
  for (const uint64_t granule : granules) unmap_piece(granule, kGranule);
}

std::optional<uint64_t> DeviceHeap::allocate(uint64_t size) {
  if (size == 0 || size > kRangeSize) return std::nullopt;
  std::lock_guard lock(mutex_);
  const bool pooled = size <= kSmallLimit;
  const uint64_t reserved = round_up(size, pooled ? kAlignment : kLargeMultiple);
  const auto address = pooled ? take_pooled(reserved) : map_piece(reserved, kGranule);
  if (address) live_.emplace(*address, Live{size, reserved, pooled});
  return address;
}

std::optional<uint64_t> DeviceHeap::allocate_at(uint64_t address, uint64_t size) {
  if (size == 0 || size > kRangeSize || address % kAlignment != 0) return std::nullopt;
  std::lock_guard lock(mutex_);
  const bool pooled = size <= kSmallLimit;
  const uint64_t reserved = round_up(size, pooled ? kAlignment : kLargeMultiple);
  if (!(pooled ? take_pooled_at(address, reserved) : map_piece(reserved, kGranule, address).has_value()))
    return std::nullopt;
  live_.emplace(address, Live{size, reserved, pooled});
  return address;
}

bool DeviceHeap::take_pooled_at(uint64_t address, uint64_t size) {
  const uint64_t granule = address / kGranule * kGranule;
  const auto piece_of = [&] {
    auto piece = free_by_address_.upper_bound(address);
    if (piece == free_by_address_.begin()) return free_by_address_.end();
    --piece;
    return address + size <= piece->first + piece->second ? piece : free_by_address_.end();
  };
  auto piece = piece_of();
  if (piece == free_by_address_.end()) {
    if (!map_piece(kGranule, kGranule, granule)) return false;
    insert_free(granule, kGranule);
    piece = piece_of();
    if (piece == free_by_address_.end()) return give_pooled(granule, kGranule), false;
  }
  const auto [start, length] = *piece;
  erase_free(piece);
  if (address > start) insert_free(start, address - start);
  if (start + length > address + size) insert_free(address + size, start + length - address - size);
  return true;
}

bool DeviceHeap::free(uint64_t address) {
  std::lock_guard lock(mutex_);
  const auto found = live_.find(address);
  if (found == live_.end()) return false;
  const Live live = found->second;
  live_.erase(found);
  if (live.pooled) {
    give_pooled(address, live.reserved);
  } else {
    unmap_piece(address, live.reserved);
  }
  return true;
}

std::optional<DeviceHeap::Allocation> DeviceHeap::find(uint64_t address) const {
  std::lock_guard lock(mutex_);
  auto at = live_.upper_bound(address);
  if (at == live_.begin()) return std::nullopt;
  --at;
  if (address - at->first >= at->second.size) return std::nullopt;
  return Allocation{at->first, at->second.size};
}

std::optional<uint64_t> DeviceHeap::take_pooled(uint64_t size) {
  auto best = free_by_size_.lower_bound({size, 0});
  if (best == free_by_size_.end()) {
    const auto granule = map_piece(kGranule, kGranule);
    if (!granule) return std::nullopt;
    insert_free(*granule, kGranule);
    best = free_by_size_.lower_bound({size, 0});
  }
  const auto [piece_size, address] = *best;
  erase_free(free_by_address_.find(address));
  if (piece_size > size) insert_free(address + size, piece_size - size);
  return address;
}

void DeviceHeap::give_pooled(uint64_t address, uint64_t size) {
  const uint64_t granule = address / kGranule * kGranule;
  auto next = free_by_address_.lower_bound(address);
  if (next != free_by_address_.end() && next->first == address + size && next->first < granule + kGranule) {
    size += next->second;
    const auto joined = next++;
    erase_free(joined);
  }
  if (next != free_by_address_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == address && previous->first >= granule) {
      address = previous->first;
      size += previous->second;
      erase_free(previous);
    }
  }
  if (size == kGranule) {
    unmap_piece(address, kGranule);
  } else {
    insert_free(address, size);
  }
}

std::optional<uint64_t> DeviceHeap::map_piece(uint64_t size, uint64_t alignment, uint64_t wanted) {
  auto memory = device_->allocate(size);
  if (!memory) return std::nullopt;
  const auto address = allocate_addresses(size, alignment, wanted);
  if (!address) return std::nullopt;
  if ((wanted == 0 || *address == wanted) && map_memory(memory, 0, *address, round_up(size, page_bytes())))
    return address;
  free_addresses(*address, size);
  return std::nullopt;
}

void DeviceHeap::unmap_piece(uint64_t address, uint64_t size) {
  unmap_memory(address, round_up(size, page_bytes()));
  free_addresses(address, size);
}

void DeviceHeap::insert_free(uint64_t address, uint64_t size) {
  free_by_address_.emplace(address, size);
  free_by_size_.emplace(size, address);
}

void DeviceHeap::erase_free(std::map<uint64_t, uint64_t>::iterator piece) {
  free_by_size_.erase({piece->second, piece->first});
  free_by_address_.erase(piece);
}

}  // namespace gpupool::softgpu
