// A memory pool of stream-ordered allocation (cuMemAllocAsync).
//
// An allocation's address is valid as soon as the call returns; freed memory becomes available when the
// freeing operation is complete. The pool caches freed memory up to its release threshold. The rest goes back
// to the device at the next synchronisation, or when the device is out of memory. Thread-safe.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "protocol/driver/cuda_header.h"
#include "server/softgpu/runtime/handles.h"
#include "server/softgpu/runtime/op.h"

namespace gpupool::softgpu {

class Device;

class MemoryPool final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::pool;
  explicit MemoryPool(Device& device, uint64_t max_size = 0);
  ~MemoryPool() override;

  Device& device() const { return device_; }
  uint64_t handle = 0;  // set before the pool is published

  // Returns an address, or nullopt if the device is out of memory or the pool has reached its maximum size.
  std::optional<uint64_t> allocate(uint64_t size);
  // Called when the pool's handle is destroyed: frees the cache and sets the release threshold to 0. What is
  // freed later goes back to the device with the pool's last reference.
  void handle_destroyed();
  // Makes an allocation's block available to others.
  void free_block(uint64_t address);
  // Frees cached blocks until at most `keep` bytes are reserved; true if any was freed.
  bool trim(uint64_t keep);
  // Like trim() with the release threshold; cheap if there is nothing to free.
  void trim_to_threshold();

  // Access of other devices (cuMemPoolSetAccess). Rule device_access checks it for kernel parameters; copies
  // ignore it.
  void set_access(int device, CUmemAccess_flags flags);
  CUmemAccess_flags access(int device) const;

  CUresult attribute(CUmemPool_attribute attribute, void* value) const;
  CUresult set_attribute(CUmemPool_attribute attribute, const void* value);

 private:
  bool trim_locked(uint64_t keep, std::vector<uint64_t>& freed);

  Device& device_;
  const uint64_t max_size_;  // 0: no limit
  mutable std::mutex mutex_;
  std::map<uint64_t, uint64_t> used_;       // address to size of the block
  std::multimap<uint64_t, uint64_t> free_;  // size to address
  uint64_t used_bytes_ = 0, used_high_ = 0;
  uint64_t reserved_bytes_ = 0, reserved_high_ = 0;
  std::map<int, CUmemAccess_flags> access_;  // by device
  uint64_t threshold_ = 0;
  int reuse_event_ = 1, reuse_opportunistic_ = 1, reuse_internal_ = 1;
};

// cuMemFreeAsync: frees an allocation in stream order.
class FreeOp final : public Op {
 public:
  explicit FreeOp(uint64_t address) : address_(address) {}

 private:
  void start() override;
  void skip() override { start(); }
  const uint64_t address_;
};

}  // namespace gpupool::softgpu
