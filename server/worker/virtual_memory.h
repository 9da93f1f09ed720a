// Memory that the client makes and maps by itself (cuMemCreate, cuMemMap): charged from its creation until its handle is
// released and it is mapped nowhere any more, as the device keeps it. The executor's thread.
#pragma once
#include <map>
#include <memory>

#include "server/worker/device_memory.h"
#include "server/worker/scrubber.h"

namespace gpupool::worker {

class VirtualMemory {
 public:
  VirtualMemory(const DeviceApi& api, DeviceMemory& memory, Scrubber& scrubber) : api_(api), memory_(memory), scrubber_(scrubber) {}

  // As the driver's functions of these names; the caller has checked the properties.
  CUresult create(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp& properties, unsigned long long flags);
  CUresult release(CUmemGenericAllocationHandle handle);
  CUresult map(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags);
  CUresult unmap(CUdeviceptr address, size_t size);

 private:
  class Charge {
   public:
    Charge(DeviceMemory& memory, int device, uint64_t bytes) : memory_(memory), device_(device), bytes_(bytes) {}
    ~Charge() { memory_.uncharge(device_, bytes_); }
    Charge(const Charge&) = delete;
    Charge& operator=(const Charge&) = delete;

   private:
    DeviceMemory& memory_;
    const int device_;
    const uint64_t bytes_;
  };

  const DeviceApi& api_;
  DeviceMemory& memory_;
  Scrubber& scrubber_;
  std::map<CUmemGenericAllocationHandle, std::shared_ptr<Charge>> created_;  // and not released
  std::map<CUdeviceptr, std::shared_ptr<Charge>> mapped_;
};

}  // namespace gpupool::worker
