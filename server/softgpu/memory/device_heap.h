// Plain allocations (cuMemAlloc and its asynchronous cousins) on a SharedDevice, made and mapped in one step.
//
// Small allocations share granules of 2 MiB, so that they cost neither a mapping nor a granule each; larger ones get a
// piece of memory of their own, rounded up to 64 KiB. A granule without allocations goes back to the device at once.
// Owns the memory behind every live allocation. Thread-safe.
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

  static constexpr uint64_t kAlignment = 512;            // bytes, of every address handed out
  static constexpr uint64_t kSmallLimit = kGranule / 2;  // larger allocations are not pooled
  static constexpr uint64_t kLargeMultiple = 64 << 10;   // bytes

  // Null when the device has not that much left. The memory is not zeroed when it was used before by this heap.
  std::optional<uint64_t> allocate(uint64_t size);
  bool free(uint64_t address);  // false: not the start of a live allocation

  struct Allocation {
    uint64_t address;
    uint64_t size;  // as asked for
  };
  // The live allocation that contains the address.
  std::optional<Allocation> find(uint64_t address) const;

 private:
  struct Live {
    uint64_t size;      // as asked for
    uint64_t reserved;  // as taken
    bool pooled;
  };
  std::optional<uint64_t> take_pooled(uint64_t size);
  void give_pooled(uint64_t address, uint64_t size);
  std::optional<uint64_t> map_piece(uint64_t size, uint64_t alignment);
  void unmap_piece(uint64_t address, uint64_t size);
  void insert_free(uint64_t address, uint64_t size);
  void erase_free(std::map<uint64_t, uint64_t>::iterator piece);

  std::shared_ptr<SharedDevice> device_;
  mutable std::mutex mutex_;
  std::map<uint64_t, Live> live_;
  std::map<uint64_t, uint64_t> free_by_address_;              // address -> size; never spans two granules
  std::set<std::pair<uint64_t, uint64_t>> free_by_size_;      // size, address
};

}  // namespace gpupool::softgpu
