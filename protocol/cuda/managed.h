// What cuMemAdvise and prefetches say of managed memory, and how it is asked for: the same on the client as on softgpu. Not
// thread-safe.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>

#include "protocol/cuda/cuda_header.h"

namespace gpupool::cuda {

// CUmemLocation, which older headers do not have in full.
struct ManagedPlace {
  static constexpr int kNone = 0, kDevice = 1, kHost = 2, kHostNode = 3, kNearHostNode = 4;
  int type = kNone;
  int id = 0;

  static ManagedPlace of_device(CUdevice device) { return device == CU_DEVICE_CPU ? ManagedPlace{kHost, 0} : ManagedPlace{kDevice, device}; }
  bool is_device() const { return type == kDevice; }
  bool operator==(const ManagedPlace&) const = default;
  // As one number: a device, CU_DEVICE_CPU, or CU_DEVICE_INVALID.
  int as_device() const { return type == kNone ? CU_DEVICE_INVALID : is_device() ? id : CU_DEVICE_CPU; }
};

// CUDA_SUCCESS: somewhere that memory can be. `devices`: how many there are.
CUresult check_place(const ManagedPlace& place, int devices);

class ManagedAdvice {
 public:
  // CUDA_ERROR_INVALID_VALUE: no such advice, or not for such a place. The range is managed memory.
  CUresult advise(uint64_t address, uint64_t bytes, CUmem_advise advice, ManagedPlace place, int devices);
  void prefetched(uint64_t address, uint64_t bytes, const ManagedPlace& place);
  // cuMemRangeGetAttribute
  CUresult get(void* data, size_t size, CUmem_range_attribute attribute, uint64_t address, uint64_t bytes) const;
  void forget(uint64_t address, uint64_t bytes);

 private:
  struct Facts {
    bool read_mostly = false;
    ManagedPlace preferred, prefetched;
    std::set<int> accessed_by;  // devices, CU_DEVICE_CPU
  };
  template <class Change>
  void change(uint64_t address, uint64_t bytes, Change&& change_facts);
  void split(uint64_t at);

  struct Range {
    uint64_t end;
    Facts facts;
  };
  std::map<uint64_t, Range> ranges_;  // those of which anything was said
};

// The arguments of the batches of prefetches and discards, but for the memory itself.
CUresult check_batch(const void* addresses, const void* sizes, size_t count, unsigned long long flags, CUstream stream);
CUresult check_batch_places(const size_t* firsts, const void* places, size_t places_count, size_t count);

}  // namespace gpupool::cuda
