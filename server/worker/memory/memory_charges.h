// Charges the tenant's memory quota for device memory that the client does not allocate itself: contexts,
// variables and code of modules and libraries, local memory of kernels, executable graphs, and raised limits
// of a context (stacks, device printf, malloc in kernels, launches by kernels). Arrays are charged in
// arrays.h; managed memory will have to be charged here once it is forwarded. Executor's thread.
//
// An image is charged by its contents (protocol/images/device_bytes.h), a library once per context. A context
// is charged by the growth of the process's device memory during its creation as the driver reports it, or
// else by the decrease of the device's free memory, and by what other sessions of the tenant free meanwhile.
// Limits are charged by their increase. Where only the
// driver knows the size, an upper estimate is charged (ADR 0018).
#pragma once
#include <unordered_map>

#include "protocol/images/device_bytes.h"
#include "server/worker/memory/device_memory.h"
#include "server/worker/session/handle_table.h"

namespace gpupool::worker {

class MemoryCharges {
 public:
  MemoryCharges(const DeviceApi& api, Contexts& contexts, HandleTable& table, DeviceMemory& memory,
                quota::Ledger& ledger, const SessionStart& start)
      : api_(api), contexts_(contexts), table_(table), memory_(memory), ledger_(ledger), start_(start) {}

  // The charge of a context that is about to be created on `device`. It passes to the context with
  // transfer_to(), or is released by the destructor.
  class PendingContext {
   public:
    PendingContext(MemoryCharges& all, int device);
    ~PendingContext();
    PendingContext(const PendingContext&) = delete;
    PendingContext& operator=(const PendingContext&) = delete;
    CUresult result() const { return result_; }  // OUT_OF_MEMORY: do not create the context
    // Call after the context was created. `earlier`: bytes that it had taken before this object was made.
    // OUT_OF_MEMORY: the context must be destroyed again.
    CUresult measure(CUcontext made, uint64_t earlier = 0);
    void transfer_to(ContextState& context);

   private:
    MemoryCharges& all_;
    const int device_;
    CUresult result_;
    uint64_t charged_ = 0;
    MemoryUse before_;
    uint64_t others_before_ = 0;  // charge of the tenant's other sessions
    bool by_context_ = false;     // the memory in use is reported by a context, which may differ from NVML
  };
  // Releases the charge of a context that is about to be destroyed, in the destructor.
  class ContextRelease {
   public:
    ContextRelease(MemoryCharges& all, const ContextState& context)
        : all_(all), device_(context.device), charged_(context.charged) {}
    ~ContextRelease() { all_.memory_.uncharge(device_, charged_); }
    ContextRelease(const ContextRelease&) = delete;
    ContextRelease& operator=(const ContextRelease&) = delete;

   private:
    MemoryCharges& all_;
    const int device_;
    const uint64_t charged_;
  };

  // Call before an image is loaded under this handle, which must not have one yet. Call forget_image() if
  // loading failed, and when the image is unloaded.
  CUresult add_module(uint64_t handle, const cuda::Image& image);
  CUresult add_library(uint64_t handle, const cuda::Image& image);
  void forget_image(uint64_t handle);

  // cuCtxSetLimit for the current context; charges or releases the difference.
  CUresult set_limit(CUlimit limit, size_t value);

  // --- Local memory (memory_charges_local_memory.cc) ---
  // Call before the kernel is launched in the context or becomes a node of a graph in it; a function's own
  // context takes precedence. Charges the growth of the context's local memory. OUT_OF_MEMORY: the quota is
  // exhausted.
  CUresult charge_local_memory(ContextState& context, const HandleTable::Launchable& kernel) {
    const ContextState& owner = context.owner();
    if ((kernel.memory->devices & bit_of_device(owner.device)) != 0 &&
        kernel.memory->bytes <= owner.local.bytes) [[likely]]
      return CUDA_SUCCESS;
    return grow_local_memory(context.owner(), kernel);
  }
  // Call if the device refused the launch for lack of memory: restores the previous charge.
  void restore_local_memory(ContextState& context, const ContextState::LocalMemory& before);

 private:
  struct Image {
    uint64_t bytes = 0;
    int device = -1;  // device of a module; -1: a library, which is in every context
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
  // Returns the memory in use as reported by start_.memory_use. If that gives no number for this process, the
  // total in use comes from `context`, one of the session's contexts on the device, unless it is null.
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
