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
  // For other sessions. CUDA_ERROR_INVALID_VALUE: it was not made for that.
  CUresult share(CUmemGenericAllocationHandle handle, Offers::Memory* memory);
  // Another session's; the descriptor stays the caller's.
  CUresult import(int descriptor, const Offers::Memory& memory, CUmemGenericAllocationHandle* handle);
  bool empty() const { return created_.empty() && mapped_.empty(); }

 private:
  class Charge {
   public:
    // `shared`: quota::Ledger's, or 0.
    Charge(DeviceMemory& memory, int device, uint64_t bytes, uint64_t handle_types, uint64_t shared = 0)
        : device(device), bytes(bytes), handle_types(handle_types), shared(shared), memory_(memory) {}
    ~Charge() {
      if (shared != 0) memory_.leave_charge(device, bytes, shared);
      else memory_.uncharge(device, bytes);
    }
    Charge(const Charge&) = delete;
    Charge& operator=(const Charge&) = delete;

    const int device;
    const uint64_t bytes;
    const uint64_t handle_types;  // as the client asked for
    uint64_t shared;

   private:
    DeviceMemory& memory_;
  };

  const DeviceApi& api_;
  DeviceMemory& memory_;
  Scrubber& scrubber_;
  std::map<CUmemGenericAllocationHandle, std::shared_ptr<Charge>> created_;  // and not released
  std::map<CUdeviceptr, std::shared_ptr<Charge>> mapped_;
};

}  // namespace gpupool::worker
