#include "client/copies/registered_memory.h"

#include <unistd.h>

#include <algorithm>

#include "client/process/log.h"

namespace gpupool::client {

void RegisteredMemory::start(transport::DirectMemory* memory, const Limits& limits) {
  memory_ = memory;
  limits_ = limits;
  // Registered memory is locked; leave half of the RAM to the rest of the machine.
  const auto half =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) / 2 * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  limits_.bytes = std::min(limits_.bytes, half);
}

std::optional<RegisteredMemory::Lease> RegisteredMemory::use(const HostAllocation& allocation) {
  if (!memory_) return std::nullopt;
  std::lock_guard lock(mutex_);
  auto known = known_.find(allocation.id);
  if (known == known_.end()) {
    if (allocation.size > limits_.bytes || refused_.contains(allocation.id)) return std::nullopt;
    while (known_.size() >= limits_.allocations || bytes_ > limits_.bytes - allocation.size) {
      if (!make_room()) return std::nullopt;
    }
    auto* const start = reinterpret_cast<void*>(static_cast<uintptr_t>(allocation.address));
    auto region = memory_->add(start, allocation.size, transport::DirectMemory::Access::remote);
    while (!region && region.error().code == ErrorCode::limit && make_room()) {
      region = memory_->add(start, allocation.size, transport::DirectMemory::Access::remote);
    }
    if (!region) {
      refused_.insert(allocation.id);
      if (!std::exchange(explained_, true)) {
        log_debug("cannot register pinned memory for RDMA, copies use a buffer: %s",
                  region.error().message.c_str());
      }
      return std::nullopt;
    }
    order_.push_front(allocation.id);
    known = known_
                .emplace(allocation.id,
                         Known{std::make_shared<const Registration>(*memory_, *region, allocation.size),
                               order_.begin()})
                .first;
    bytes_ += allocation.size;
  }
  order_.splice(order_.begin(), order_, known->second.used);
  return Lease{known->second.registration->region.remote_key, known->second.registration};
}

// Evicts the least recently used registration that no copy uses; false: there is none.
bool RegisteredMemory::make_room() {
  for (auto id = order_.rbegin(); id != order_.rend(); ++id) {
    const auto known = known_.find(*id);
    if (known->second.registration.use_count() != 1) continue;
    erase(known);
    return true;
  }
  return false;
}

void RegisteredMemory::erase(std::unordered_map<uint64_t, Known>::iterator known) {
  bytes_ -= known->second.registration->bytes;
  order_.erase(known->second.used);
  known_.erase(known);
  refused_.clear();
}

void RegisteredMemory::forget(uint64_t allocation) {
  std::lock_guard lock(mutex_);
  refused_.erase(allocation);
  if (const auto known = known_.find(allocation); known != known_.end()) erase(known);
}

size_t RegisteredMemory::size() {
  std::lock_guard lock(mutex_);
  return known_.size();
}

}  // namespace gpupool::client
