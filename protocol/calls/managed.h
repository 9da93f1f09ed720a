// The advice (cuMemAdvise) and prefetches recorded for managed memory, and the checks of their arguments.
// Used by the client library and softgpu. One thread at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>

#include "protocol/driver/cuda_header.h"

namespace gpupool::cuda {

// A CUmemLocation, which older headers lack in full.
struct ManagedLocation {
  static constexpr int kNone = 0, kDevice = 1, kHost = 2, kHostNode = 3, kNearHostNode = 4;
  int type = kNone;
  int id = 0;

  static ManagedLocation of_device(CUdevice device) {
    return device == CU_DEVICE_CPU ? ManagedLocation{kHost, 0} : ManagedLocation{kDevice, device};
  }
  bool is_device() const { return type == kDevice; }
  bool operator==(const ManagedLocation&) const = default;
  // The location as one number: a device, CU_DEVICE_CPU, or CU_DEVICE_INVALID.
  int as_device() const { return type == kNone ? CU_DEVICE_INVALID : is_device() ? id : CU_DEVICE_CPU; }
};

// CUDA_SUCCESS if memory can be at this location. `devices`: number of devices.
CUresult check_location(const ManagedLocation& place, int devices);

class ManagedAdvice {
 public:
  // Records advice for a range of managed memory. CUDA_ERROR_INVALID_VALUE: the advice does not exist, or not
  // for this kind of location.
  CUresult advise(uint64_t address, uint64_t bytes, CUmem_advise advice, ManagedLocation place, int devices);
  void prefetched(uint64_t address, uint64_t bytes, const ManagedLocation& place);
  // Implements cuMemRangeGetAttribute.
  CUresult get(void* data, size_t size, CUmem_range_attribute attribute, uint64_t address,
               uint64_t bytes) const;
  void forget(uint64_t address, uint64_t bytes);

 private:
  struct Facts {
    bool read_mostly = false;
    ManagedLocation preferred, prefetched;
    std::set<int> accessed_by;  // devices, CU_DEVICE_CPU
  };
  template <class Change>
  void change(uint64_t address, uint64_t bytes, Change&& change_facts);
  void split(uint64_t at);

  struct Range {
    uint64_t end;
    Facts facts;
  };
  std::map<uint64_t, Range> ranges_;  // ranges with recorded facts
};

// Check the arguments of batches of prefetches and discards, except for the memory itself.
CUresult check_batch(const void* addresses, const void* sizes, size_t count, unsigned long long flags,
                     CUstream stream);
CUresult check_batch_locations(const size_t* firsts, const void* places, size_t places_count, size_t count);

}  // namespace gpupool::cuda
