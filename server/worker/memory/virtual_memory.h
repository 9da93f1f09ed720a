// Memory that the client allocates and maps itself (cuMemCreate, cuMemMap). It exists, and stays charged,
// until its handle is released and all its mappings are gone. Handles are numbers of the session's own,
// because a restore after a checkpoint creates new driver handles. Executor's thread only.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "server/worker/checkpoint/checkpoint_image.h"
#include "server/worker/memory/device_memory.h"
#include "server/worker/memory/scrubber.h"

namespace gpupool::worker {

class VirtualMemory {
 public:
  static constexpr size_t kMaxMulticasts = 256;  // per session; NVLink switches support few

  VirtualMemory(const DeviceApi& api, DeviceMemory& memory, Scrubber& scrubber)
      : api_(api), memory_(memory), scrubber_(scrubber) {}

  // Like the driver's functions of these names; the caller has checked the properties.
  CUresult create(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp& properties,
                  unsigned long long flags);
  CUresult release(CUmemGenericAllocationHandle handle);
  CUresult map(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
               unsigned long long flags);
  CUresult unmap(CUdeviceptr address, size_t size);
  CUresult set_access(CUdeviceptr address, size_t size, const std::vector<CUmemAccessDesc>& access);
#if CUDA_VERSION >= 12010
  // Multicast objects (multicast.cc). Their handles are of the same kind as memory handles; an object
  // combines the memory of several devices that is bound to it. Bound memory stays charged to its owner until
  // it is unbound or the object is destroyed. Devices are numbered as in the library.
  CUresult create_multicast(CUmemGenericAllocationHandle* handle, const CUmulticastObjectProp& properties);
  CUresult add_multicast_device(CUmemGenericAllocationHandle object, CUdevice device);
  CUresult bind_multicast(CUmemGenericAllocationHandle object, size_t offset,
                          CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size);
  // Binds memory by the address at which it is mapped; a single map() must have mapped all of it.
  CUresult bind_multicast_at(CUmemGenericAllocationHandle object, size_t offset, CUdeviceptr address,
                             size_t size);
  // Only unbinds exactly what was bound, since the driver does not define other cases.
  CUresult unbind_multicast(CUmemGenericAllocationHandle object, CUdevice device, size_t offset, size_t size);
#endif
  // Describes memory for other sessions. CUDA_ERROR_INVALID_VALUE: it was not created as shareable.
  CUresult share(CUmemGenericAllocationHandle handle, ExportedHandles::Memory* memory);
  // Imports another session's memory; the caller keeps the descriptor.
  CUresult import(int descriptor, const ExportedHandles::Memory& memory,
                  CUmemGenericAllocationHandle* handle);
  // Unmaps everything. All handles have been released.
  void drop_all();
  // True if other sessions may have some of the memory, which then cannot be checkpointed; neither can
  // multicast objects.
  bool shares() const;
  bool has_multicasts() const { return multicasts_ != 0; }
  void add_pieces(CheckpointImage::Pieces& pieces);
  // An allocation: its handle, or 0 and a mapping of it if the handle was released.
  struct Name {
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr address = 0;
  };
  // The allocations that are not mapped as a whole where their own device may read and write them.
  std::vector<Name> hidden() const;
  // Maps an allocation temporarily and calls `visit(address, size, device)`. CUDA_ERROR_INVALID_VALUE: there
  // is none, or it is a multicast object.
  CUresult visit(const Name& name, const std::function<CUresult(CUdeviceptr, uint64_t, int)>& visit);
  // Calls `visit(address, size, device)` for each mapping that its own device may read and write, in the
  // order of addresses.
  void for_each_mapping(const std::function<void(uint64_t, uint64_t, int)>& visit) const;

 private:
  struct Allocation;
  // Memory that is bound to a multicast object.
  struct Bound {
    std::shared_ptr<Allocation> memory;
    size_t offset, size;  // in the multicast object
  };
  // Device memory with its charge in the quota.
  struct Allocation {
    Allocation(const DeviceApi& api, DeviceMemory& memory, int device, uint64_t bytes, uint64_t handle_types,
               uint64_t shared = 0)
        : device(device),
          bytes(bytes),
          handle_types(handle_types),
          shared(shared),
          api_(api),
          memory_(memory) {}
    ~Allocation();
    Allocation(const Allocation&) = delete;
    Allocation& operator=(const Allocation&) = delete;

    const int device;
    const uint64_t bytes;
    const uint64_t handle_types;       // as the client requested
    CUmemAllocationProp properties{};  // as passed to cuMemCreate
    unsigned long long flags = 0;
    CUmemGenericAllocationHandle handle = 0;  // the driver's handle
    uint64_t shared;                          // id in quota::Ledger; 0: not shared
    // Imported, or no longer available to other sessions but possibly imported by one.
    bool of_others = false;
    bool away = false;             // removed from the device by a checkpoint
    size_t* multicasts = nullptr;  // multicast object only: counter of these objects
    std::vector<Bound> bound;      // multicast object only: memory bound to it

    bool is_multicast() const { return device == ExportedHandles::Memory::kOfNone; }

   private:
    const DeviceApi& api_;
    DeviceMemory& memory_;
  };
  struct Mapping {
    std::shared_ptr<Allocation> allocation;
    uint64_t size = 0, offset = 0;
    std::vector<CUmemAccessDesc> access;  // the latest for each location
  };
  class CheckpointedMemory;

  // Returns null if there is none.
  std::shared_ptr<Allocation> find(const Name& name) const;
  static bool own_device_may_write(const Mapping& mapping);
  CUresult map_at(CUdeviceptr address, const Mapping& mapping);
  CUmemGenericAllocationHandle add(std::shared_ptr<Allocation> allocation);
  // Returns null if there is no multicast object of this handle.
  Allocation* find_multicast(CUmemGenericAllocationHandle object);
  CUresult bind(CUmemGenericAllocationHandle object, size_t offset, std::shared_ptr<Allocation> memory,
                size_t memory_offset, size_t size);

  const DeviceApi& api_;
  DeviceMemory& memory_;
  Scrubber& scrubber_;
  CUmemGenericAllocationHandle last_ = 0;
  size_t multicasts_ = 0;
  // Allocations whose handles are not released.
  std::map<CUmemGenericAllocationHandle, std::shared_ptr<Allocation>> created_;
  std::map<CUdeviceptr, Mapping> mapped_;
};

}  // namespace gpupool::worker
