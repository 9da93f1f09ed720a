// A memory pool of stream-ordered allocation (cuMemAllocAsync).
//
// An allocation's address exists from the call on; what is freed becomes available to others when the freeing
// operation has completed. Freed memory stays with the pool up to its release threshold, the rest goes back
// to the device at the next synchronisation, or when the device has no other memory left. Thread-safe.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "protocol/cuda/cuda_header.h"
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
  uint64_t handle = 0;  // set once, before the pool is shown to anyone

  std::optional<uint64_t> allocate(uint64_t size);
  // The pool has no handle any more: it keeps nothing that is given back.
  void set_released();
  // The block may be given out again from now on.
  void give_back(uint64_t address);
  // Frees cached blocks until at most `keep` bytes are reserved; true when anything was freed.
  bool trim(uint64_t keep);
  // As trim with the release threshold; cheap when there is nothing to do.
  void trim_to_threshold();

  // What another device may do with its memory: kept and given back. Every device reaches all memory here.
  void set_access(int device, CUmemAccess_flags flags);
  CUmemAccess_flags access(int device) const;

  CUresult attribute(CUmemPool_attribute attribute, void* value) const;
  CUresult set_attribute(CUmemPool_attribute attribute, const void* value);

 private:
  bool trim_locked(uint64_t keep, std::vector<uint64_t>& freed);

  Device& device_;
  const uint64_t max_size_;  // 0: no limit
  mutable std::mutex mutex_;
  std::map<uint64_t, uint64_t> used_;       // address -> size of the block
  std::multimap<uint64_t, uint64_t> free_;  // size -> address
  uint64_t used_bytes_ = 0, used_high_ = 0;
  uint64_t reserved_bytes_ = 0, reserved_high_ = 0;
  std::map<int, CUmemAccess_flags> access_;  // by device
  uint64_t threshold_ = 0;
  int reuse_event_ = 1, reuse_opportunistic_ = 1, reuse_internal_ = 1;
};

// cuMemFreeAsync: gives an asynchronous allocation back when the stream gets there.
class FreeOp final : public Op {
 public:
  explicit FreeOp(uint64_t address) : address_(address) {}

 private:
  void start() override;
  void skip() override { start(); }
  const uint64_t address_;
};

}  // namespace gpupool::softgpu
