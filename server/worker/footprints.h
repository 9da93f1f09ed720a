// What counts in the tenant's memory quota beside the memory that the client asks for: contexts, the variables and code of
// modules and libraries, kernels' local memory, executable graphs, and what a client raises the limits of a context to (stacks,
// device printf, malloc in kernels, launches by kernels).
// Managed memory belongs here as soon as it is forwarded; arrays: arrays.h. The executor's thread.
//
// Counted is what the image says (protocol/cuda/device_bytes.h), a library's once for every context; of a context what the
// process's memory on the device, as the driver tells it, grew by when it was made, or else what the device's free memory lost; of its
// limits what they are raised by. Where the driver alone knows how much it takes, an upper estimate counts (ADR 0018).
#pragma once
#include <unordered_map>

#include "protocol/cuda/device_bytes.h"
#include "server/worker/device_memory.h"
#include "server/worker/handle_table.h"

namespace gpupool::worker {

class Footprints {
 public:
  Footprints(const DeviceApi& api, Contexts& contexts, HandleTable& table, DeviceMemory& memory, quota::Ledger& ledger, const SessionStart& start)
      : api_(api), contexts_(contexts), table_(table), memory_(memory), ledger_(ledger), start_(start) {}

  // A context that is about to be made on `device`: what it takes is charged until it is made a part of the context, or given
  // back when this is destroyed.
  class Coming {
   public:
    Coming(Footprints& all, int device);
    ~Coming();
    Coming(const Coming&) = delete;
    Coming& operator=(const Coming&) = delete;
    CUresult result() const { return result_; }  // OUT_OF_MEMORY: it must not be made
    // It was made. OUT_OF_MEMORY: it must be destroyed again.
    CUresult measure(CUcontext made);
    void become(ContextState& context);

   private:
    Footprints& all_;
    const int device_;
    CUresult result_;
    uint64_t charged_ = 0;
    MemoryUse before_;
    bool by_context_ = false;  // a context tells the memory in use, which need not be NVML's number
  };
  // A context that is about to be destroyed: what it took is given back when this is.
  class Leaving {
   public:
    Leaving(Footprints& all, const ContextState& context) : all_(all), device_(context.device), charged_(context.charged) {}
    ~Leaving() { all_.memory_.uncharge(device_, charged_); }
    Leaving(const Leaving&) = delete;
    Leaving& operator=(const Leaving&) = delete;

   private:
    Footprints& all_;
    const int device_;
    const uint64_t charged_;
  };

  // Before an image is loaded under this handle, which must not have one; forget_image() when that failed, and at its end.
  CUresult add_module(uint64_t handle, const cuda::Image& image);
  CUresult add_library(uint64_t handle, const cuda::Image& image);
  void forget_image(uint64_t handle);

  // cuCtxSetLimit, in the current context.
  CUresult set_limit(CUlimit limit, size_t value);

  // --- Local memory, in footprints_local_memory.cc ---
  // Before the kernel is launched in the context, or becomes a node of a graph there; a function's own context goes before. Charges what the context's local memory grows by.
  // OUT_OF_MEMORY: there is no room in the quota.
  CUresult charge_local_memory(ContextState& context, const HandleTable::Launchable& kernel) {
    const ContextState& owner = context.owner();
    if ((kernel.memory->devices & bit_of_device(owner.device)) != 0 && kernel.memory->bytes <= owner.local.bytes) [[likely]] return CUDA_SUCCESS;
    return grow_local_memory(context.owner(), kernel);
  }
  // The device refused the launch for want of memory: the context has what it had before.
  void restore_local_memory(ContextState& context, const ContextState::LocalMemory& before);

 private:
  struct Image {
    uint64_t bytes = 0;
    int device = -1;  // of a module; a library is in every context
    bool launches_kernels = false;
  };
  cuda::DeviceUse use_of(const cuda::Image& image, int device) const;
  uint64_t libraries() const;
  CUresult grow_local_memory(ContextState& context, const HandleTable::Launchable& kernel);
  CUresult grow_local_memory(ContextState& context, uint64_t bytes_per_thread);
  uint64_t local_memory(uint64_t bytes_per_thread, int device) const;
  CUresult add_local_bytes(cuda::Kind kind, void* object, int device, uint64_t* bytes) const;
  CUresult add_local_bytes_of_all(uint64_t code, int device, uint64_t* bytes) const;
  CUresult set_stack_limit(ContextState& context, size_t value);
  // As start_.memory_use tells; of all processes also as `context`, of this session on the device, does. Null: there is none.
  MemoryUse used_on(int device, CUcontext context);
  void log_refusal(int device, uint64_t context_bytes) const;

  const DeviceApi& api_;
  Contexts& contexts_;
  HandleTable& table_;
  DeviceMemory& memory_;
  quota::Ledger& ledger_;
  const SessionStart& start_;
  std::unordered_map<uint64_t, Image> images_;
};

}  // namespace gpupool::worker
