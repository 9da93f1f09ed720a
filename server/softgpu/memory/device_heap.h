// Plain allocations (cuMemAlloc, cuMemAllocAsync) on a SharedDevice, made and mapped in one step. Used by
// runtime/.
//
// Allocations of up to 1 MiB share granules of 2 MiB, so that they need neither a mapping nor a granule each;
// larger ones get memory of their own, rounded up to 64 KiB. An empty granule is returned to the device at
// once. Owns the memory of all live allocations. Thread-safe.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "server/softgpu/memory/shared_device.h"

namespace gpupool::softgpu {

class DeviceHeap {
 public:
  explicit DeviceHeap(std::shared_ptr<SharedDevice> device);
  ~DeviceHeap();  // frees what is left
  DeviceHeap(const DeviceHeap&) = delete;
  DeviceHeap& operator=(const DeviceHeap&) = delete;

  static constexpr uint64_t kAlignment = 512;            // bytes, of every returned address
  static constexpr uint64_t kSmallLimit = kGranule / 2;  // larger allocations are not pooled
  static constexpr uint64_t kLargeMultiple = 64 << 10;   // bytes

  // Returns nullopt if the device has too little free memory. Memory used earlier by this heap is not zeroed.
  std::optional<uint64_t> allocate(uint64_t size);
  // Likewise, at this address. nullopt also if another allocation or mapping is there.
  std::optional<uint64_t> allocate_at(uint64_t address, uint64_t size);
  bool free(uint64_t address);  // returns false if the address is not the start of a live allocation

  struct Allocation {
    uint64_t address;
    uint64_t size;  // as requested
  };
  // Returns the live allocation that contains the address.
  std::optional<Allocation> find(uint64_t address) const;

 private:
  struct Live {
    uint64_t size;      // as requested
    uint64_t reserved;  // rounded up
    bool pooled;
  };
  std::optional<uint64_t> take_pooled(uint64_t size);
  void give_pooled(uint64_t address, uint64_t size);
  // `wanted`: only at this address; 0: anywhere.
  std::optional<uint64_t> map_piece(uint64_t size, uint64_t alignment, uint64_t wanted = 0);
  bool take_pooled_at(uint64_t address, uint64_t size);
  void unmap_piece(uint64_t address, uint64_t size);
  void insert_free(uint64_t address, uint64_t size);
  void erase_free(std::map<uint64_t, uint64_t>::iterator piece);

  std::shared_ptr<SharedDevice> device_;
  mutable std::mutex mutex_;
  std::map<uint64_t, Live> live_;
  std::map<uint64_t, uint64_t> free_by_address_;          // address -> size; never spans two granules
  std::set<std::pair<uint64_t, uint64_t>> free_by_size_;  // size, address
};

}  // namespace gpupool::softgpu
