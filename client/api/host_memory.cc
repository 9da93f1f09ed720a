// Pinned host memory. If the server shares it, kernels use it in place. Otherwise it is ordinary memory of
// this process until a kernel is to use it (ADR 0028). For memory that the program registers, kernels get a
// copy (client/memory/compared_copies.h).
#include "client/memory/host_memory.h"

#include <algorithm>
#include <mutex>

#include "client/graphs/capture.h"
#include "client/memory/compared_copies.h"
#include "protocol/calls/errors.h"
#include "protocol/driver/exports.h"

using namespace gpupool::client;

namespace {

constexpr unsigned kAllocFlags =
    CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
constexpr unsigned kRegisterFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                                    CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;

// Waits for copies that may still access memory that is about to be freed, on any server, as CUDA does.
void await_copies(bool used = false) {
  const auto pending = [](const auto& session) { return session->copies_pending(); };
  if (!used && !streams_held() && std::none_of(sessions().begin(), sessions().end(), pending)) return;
  Context* const current = current_context();
  const auto finish = [](Context& context) {
    const CUresult result = synchronize_context(context);
    // Reported by the context's next call.
    if (result != CUDA_SUCCESS && !gpupool::cuda::is_sticky(result)) context.late_error = result;
  };
  if (current) finish(*current);
  for (const auto& device : devices()) {
    Context& primary = *device->primary;
    if (&primary != current && primary.active && primary.on_server) finish(primary);
  }
}

// Drops RDMA registrations, so that servers can no longer access the memory.
void withdraw(const std::optional<HostAllocation>& allocation, const void* memory) {
  if (!allocation || allocation->address != reinterpret_cast<uintptr_t>(memory)) return;
  for (const auto& session : sessions()) session->registered().forget(allocation->id);
}

// Returns the kernels' address of registered memory; makes the device copy at the first call.
CUresult device_pointer_of_registered(const HostAllocation& registered, uint64_t address, Session& session,
                                      Context& context, CUdeviceptr* device) {
  static std::mutex making;
  const std::lock_guard lock(making);
  const auto known = host_memory().find(registered.address);
  if (!known) return CUDA_ERROR_INVALID_VALUE;
  CUdeviceptr made = known->device;
  if (made == 0) {
    if (const CUresult result = cuMemAlloc_v2(&made, known->size); result != CUDA_SUCCESS) return result;
    void* const memory = reinterpret_cast<void*>(static_cast<uintptr_t>(known->address));
    const bool read_only = (known->flags & CU_MEMHOSTREGISTER_READ_ONLY) != 0;
    if (const CUresult result = compared_copies().add(context, memory, known->size, read_only, made);
        result != CUDA_SUCCESS) {
      cuMemFree_v2(made);
      return result;
    }
    host_memory().set_device(known->address, made);
  }
  if (session_of(made, &session) != &session) return CUDA_ERROR_NOT_SUPPORTED;
  *device = made + (address - known->address);
  return CUDA_SUCCESS;
}

}  // namespace

CUDA_EXPORT CUresult cuMemHostAlloc(void** memory, size_t bytes, unsigned int flags) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
    if (const CUresult result = session->before_call(context); result != CUDA_SUCCESS) return result;
    if (const CUresult refused = capture::refuse_unsafe(); refused != CUDA_SUCCESS) return refused;
    if (!memory || flags & ~kAllocFlags) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_SUCCESS;
    *memory = nullptr;
    if (bytes == 0) return CUDA_SUCCESS;
    *memory =
        session->shares_memory() ? host_memory().allocate_shared(bytes, flags, *context, &result) : nullptr;
    if (result != CUDA_SUCCESS) return result;
    if (!*memory) *memory = host_memory().allocate(bytes, flags, *context);
    if (!*memory) return CUDA_ERROR_OUT_OF_MEMORY;
    // If this fails (device memory), it is retried when a kernel is given the memory.
    if (flags & CU_MEMHOSTALLOC_DEVICEMAP)
      (void)reach_host_memory(reinterpret_cast<uintptr_t>(*memory), *context);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuMemFreeHost(void* memory) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!memory) return CUDA_SUCCESS;
    const auto allocation = host_memory().find(reinterpret_cast<uintptr_t>(memory));
    await_copies(allocation && allocation->used);
    if (allocation && !allocation->registered) withdraw(allocation, memory);
    return host_memory().free(memory) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUDA_EXPORT CUresult cuMemHostRegister_v2(void* memory, size_t bytes, unsigned int flags) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
    if (const CUresult result = session->before_call(context); result != CUDA_SUCCESS) return result;
    if (!memory || bytes == 0 || flags & ~kRegisterFlags) return CUDA_ERROR_INVALID_VALUE;
    if (flags & CU_MEMHOSTREGISTER_IOMEMORY) return CUDA_ERROR_NOT_SUPPORTED;
    return host_memory().add_registered(memory, bytes, flags, context->handle)
               ? CUDA_SUCCESS
               : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  });
}

CUDA_EXPORT CUresult cuMemHostUnregister(void* memory) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!memory) return CUDA_ERROR_INVALID_VALUE;
    const auto allocation = host_memory().find(reinterpret_cast<uintptr_t>(memory));
    await_copies(allocation && allocation->device);
    const CUresult brought = compared_copies().any() ? compared_copies().after_other_wait() : CUDA_SUCCESS;
    if (const CUdeviceptr device = compared_copies().any() ? compared_copies().remove(memory) : 0)
      cuMemFree_v2(device);
    if (allocation && allocation->registered) withdraw(allocation, memory);
    if (host_memory().remove_registered(memory)) return brought;
    // Pinned memory and the middle of registered memory are known, but were not registered at this address.
    return allocation ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  });
}

CUresult gpupool::client::reach_host_memory(uint64_t address, Context& context) {
  const auto found = host_memory().find(address);
  if (!found || found->reached || !found->home) return CUDA_SUCCESS;
  // Running copies must not use pages that are about to be replaced.
  await_copies(true);
  for (const auto& session : sessions()) session->registered().forget(found->id);
  return host_memory().reach(address, context);
}

CUDA_EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* memory, unsigned int flags) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
    if (!device || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const uint64_t address = reinterpret_cast<uintptr_t>(memory);
    const auto found = host_memory().find(address);
    if (!found) return CUDA_ERROR_INVALID_VALUE;
    if (found->registered) return device_pointer_of_registered(*found, address, *session, *context, device);
    Session* const from = found->home ? found->home : found->shared_with;
    if (found->device == 0 || from != session) return CUDA_ERROR_NOT_SUPPORTED;
    if (const CUresult result = reach_host_memory(address, *context); result != CUDA_SUCCESS) return result;
    *device = found->device + (address - found->address);
    return CUDA_SUCCESS;
  });
}
