// Memory that the client makes and maps by itself (cuMemCreate, cuMemMap). It stays, and stays charged, until its handle is released and it
// is mapped nowhere any more. Handles are numbers of the session's own, since a checkpoint makes the driver's anew. The executor's thread.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "server/worker/checkpoint_image.h"
#include "server/worker/device_memory.h"
#include "server/worker/scrubber.h"

namespace gpupool::worker {

class VirtualMemory {
 public:
  static constexpr size_t kMaxMulticasts = 256;  // of a session: the switches between GPUs have few

  VirtualMemory(const DeviceApi& api, DeviceMemory& memory, Scrubber& scrubber) : api_(api), memory_(memory), scrubber_(scrubber) {}

  // As the driver's functions of these names; the caller has checked the properties.
  CUresult create(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp& properties, unsigned long long flags);
  CUresult release(CUmemGenericAllocationHandle handle);
  CUresult map(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags);
  CUresult unmap(CUdeviceptr address, size_t size);
  CUresult set_access(CUdeviceptr address, size_t size, const std::vector<CUmemAccessDesc>& access);
#if CUDA_VERSION >= 12010
  // Multicast objects (multicast.cc): handles like those of memory, which stands for the memory of several devices that is bound to it. What
  // is bound stays charged to its maker until it is unbound or the object is gone. Devices are the library's numbers.
  CUresult create_multicast(CUmemGenericAllocationHandle* handle, const CUmulticastObjectProp& properties);
  CUresult add_multicast_device(CUmemGenericAllocationHandle object, CUdevice device);
  CUresult bind_multicast(CUmemGenericAllocationHandle object, size_t offset, CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size);
  // Of memory that is mapped, all of it by one mapping of map().
  CUresult bind_multicast_at(CUmemGenericAllocationHandle object, size_t offset, CUdeviceptr address, size_t size);
  // As it was bound, since the driver does not define what else it does.
  CUresult unbind_multicast(CUmemGenericAllocationHandle object, CUdevice device, size_t offset, size_t size);
#endif
  // For other sessions. CUDA_ERROR_INVALID_VALUE: it was not made for that.
  CUresult share(CUmemGenericAllocationHandle handle, Offers::Memory* memory);
  // Another session's; the descriptor stays the caller's.
  CUresult import(int descriptor, const Offers::Memory& memory, CUmemGenericAllocationHandle* handle);
  // Handles have been released.
  void drop_all();
  // Is any of it other sessions' as well, as far as is known here? That stays at a checkpoint, and so do multicast objects.
  bool shares() const;
  bool has_multicasts() const { return multicasts_ != 0; }
  void add_pieces(CheckpointImage::Pieces& pieces);

 private:
  struct Allocation;
  // Memory that is bound to a multicast object.
  struct Bound {
    std::shared_ptr<Allocation> memory;
    size_t offset, size;  // in the object
  };
  // Of the device, and of the quota.
  struct Allocation {
    Allocation(const DeviceApi& api, DeviceMemory& memory, int device, uint64_t bytes, uint64_t handle_types, uint64_t shared = 0)
        : device(device), bytes(bytes), handle_types(handle_types), shared(shared), api_(api), memory_(memory) {}
    ~Allocation();
    Allocation(const Allocation&) = delete;
    Allocation& operator=(const Allocation&) = delete;

    const int device;
    const uint64_t bytes;
    const uint64_t handle_types;      // as the client asked for
    CUmemAllocationProp properties{};  // what it is made with
    unsigned long long flags = 0;
    CUmemGenericAllocationHandle handle = 0;  // the driver's
    uint64_t shared;        // quota::Ledger's, or 0
    bool of_others = false;  // it was imported, or others may have imported it and it is offered no longer
    bool away = false;      // in a checkpoint
    size_t* multicasts = nullptr;  // of a multicast object: what counts it
    std::vector<Bound> bound;      // to it

    bool is_multicast() const { return device == Offers::Memory::kOfNone; }

   private:
    const DeviceApi& api_;
    DeviceMemory& memory_;
  };
  struct Mapping {
    std::shared_ptr<Allocation> allocation;
    uint64_t size = 0, offset = 0;
    std::vector<CUmemAccessDesc> access;  // one of each place
  };
  class Leaving;

  CUresult map_at(CUdeviceptr address, const Mapping& mapping);
  CUmemGenericAllocationHandle add(std::shared_ptr<Allocation> allocation);
  // Null: there is no such object.
  Allocation* find_multicast(CUmemGenericAllocationHandle object);
  CUresult bind(CUmemGenericAllocationHandle object, size_t offset, std::shared_ptr<Allocation> memory, size_t memory_offset, size_t size);

  const DeviceApi& api_;
  DeviceMemory& memory_;
  Scrubber& scrubber_;
  CUmemGenericAllocationHandle last_ = 0;
  size_t multicasts_ = 0;
  std::map<CUmemGenericAllocationHandle, std::shared_ptr<Allocation>> created_;  // and not released
  std::map<CUdeviceptr, Mapping> mapped_;
};

}  // namespace gpupool::worker
