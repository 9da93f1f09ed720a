// Address ranges reserved by cuMemAddressReserve. Thread-safe.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>

namespace gpupool::softgpu {

class AddressReservations {
 public:
  void add(uint64_t address, uint64_t size) {
    std::lock_guard guard(mutex_);
    ranges_[address] = size;
  }
  // False if there is no reservation of exactly this range.
  bool remove(uint64_t address, uint64_t size) {
    std::lock_guard guard(mutex_);
    const auto it = ranges_.find(address);
    if (it == ranges_.end() || it->second != size) return false;
    ranges_.erase(it);
    return true;
  }
  // True if [address, address + size) lies inside one reservation.
  bool contains(uint64_t address, uint64_t size) const {
    std::lock_guard guard(mutex_);
    auto it = ranges_.upper_bound(address);
    if (it == ranges_.begin()) return false;
    --it;
    return size <= it->second && address - it->first <= it->second - size;
  }

 private:
  mutable std::mutex mutex_;
  std::map<uint64_t, uint64_t> ranges_;
};

}  // namespace gpupool::softgpu
