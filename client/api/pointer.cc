// Pointer queries, answered from the client's records.
#include "client/memory/compared_copies.h"
#include "client/memory/host_memory.h"
#include "client/memory/virtual_memory.h"
#include "client/session/call.h"
#include "protocol/driver/exports.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

template <class T>
CUresult give(void* to, T value) {
  std::memcpy(to, &value, sizeof value);  // NOLINT(bugprone-sizeof-expression): T may be a pointer
  return CUDA_SUCCESS;
}

struct Found {
  std::optional<Allocation> device;
  std::optional<HostAllocation> host;
  explicit operator bool() const { return device || host; }
};

// Accepts the kernels' address of registered memory as well as the host address.
Found find(CUdeviceptr& address) {
  Found found;
  if (compared_copies().any()) [[unlikely]]
    address = compared_copies().host_of(address).value_or(address);
  if (Session* session = session_of(address, current_session()))
    found.device = session->addresses().find(address);
  if (!found.device) found.host = host_memory().find(address);
  return found;
}

bool is_mapped_by_program(uint64_t start) {
  const std::lock_guard lock(mappings().mutex);
  return mappings().by_address.contains(start);
}

// For the current context's device. Only cuMemSetAccess removes access, and the server knows its settings.
CUresult access_flags(const Found& found, CUdeviceptr address, void* to) {
  unsigned long long flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  static_assert(int{CU_MEM_ACCESS_FLAGS_PROT_READ} == int{CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ} &&
                int{CU_MEM_ACCESS_FLAGS_PROT_READWRITE} == int{CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE});
  if (found.device && is_mapped_by_program(found.device->address)) {
    const Context* const current = current_context();
    const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE,
                                 {(current ? current->device : found.device->device)->ordinal}};
    if (const CUresult result = cuMemGetAccess(&flags, &location, address); result != CUDA_SUCCESS)
      return result;
  } else if (found.host) {
    const bool read_only = found.host->registered && (found.host->flags & CU_MEMHOSTREGISTER_READ_ONLY) != 0;
    if (found.host->device == 0)
      flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    else if (read_only)
      flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  } else if (!found.device) {
    flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  }
  return give(to, static_cast<int>(flags));
}

// cuPointerGetAttribute fails for addresses unknown to CUDA; cuPointerGetAttributes returns zeros for them.
CUresult answer(const Found& found, CUpointer_attribute attribute, CUdeviceptr address, void* to) {
  const uint64_t base = found.device ? found.device->address : found.host ? found.host->address : 0;
  const uint64_t size = found.device ? found.device->size : found.host ? found.host->size : 0;
  const uint64_t context_handle = found.device ? found.device->context : found.host ? found.host->context : 0;
  const auto* context = handles().find_as<Context>(Kind::context, context_handle);
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: return give(to, cuda::handle_from_bits<CUcontext>(context_handle));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return give<unsigned>(to, found.device ? CU_MEMORYTYPE_DEVICE : found.host ? CU_MEMORYTYPE_HOST : 0);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return give<CUdeviceptr>(to, found.device                       ? address
                                   : found.host && found.host->device ? found.host->device + (address - base)
                                                                      : 0);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (found.device && !found.device->managed) return CUDA_ERROR_INVALID_VALUE;
      if (found.device) return give<CUdeviceptr>(to, address);
      return give<void*>(to, found.host ? reinterpret_cast<void*>(static_cast<uintptr_t>(address)) : nullptr);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return give<unsigned long long>(to, found.device ? found.device->id : found.host ? found.host->id : 0);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return give<int>(to, found.device ? found.device->device->ordinal
                           : context    ? context->device->ordinal
                                        : -2);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return give<CUdeviceptr>(to, base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return give<size_t>(to, size);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return give<int>(to, found.device || (found.host && found.host->device));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: return give<int>(to, found.device && found.device->managed);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: return give<int>(to, found.device && found.device->sync_memops);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: return give<int>(to, 0);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return give<int>(to, found.device && !found.device->foreign && !found.device->managed &&
                               found.device->origin == Allocation::Origin::plain);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: return access_flags(found, address, to);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return give<unsigned long long>(to,
                                      found.device ? static_cast<unsigned>(found.device->handle_types) : 0);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return give(to, cuda::handle_from_bits<CUmemoryPool>(found.device ? found.device->pool : 0));
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS: return CUDA_ERROR_NOT_SUPPORTED;
#if CUDA_VERSION >= 12000
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: return give<size_t>(to, size);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: return give<CUdeviceptr>(to, base);
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return give<unsigned long long>(to, found.device ? found.device->id : found.host ? found.host->id : 0);
#endif
#if CUDA_VERSION >= 12080
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return give<int>(to, found.device && found.device->decompressable);
#endif
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

CUDA_EXPORT CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!data) return CUDA_ERROR_INVALID_VALUE;
    const Found found = find(address);
    return found ? answer(found, attribute, address, data) : CUDA_ERROR_INVALID_VALUE;
  });
}

CUDA_EXPORT CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** data,
                                            CUdeviceptr address) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!attributes || !data || count == 0) return CUDA_ERROR_INVALID_VALUE;
    const Found found = find(address);
    for (unsigned i = 0; i < count; ++i) {
      if (!data[i]) return CUDA_ERROR_INVALID_VALUE;
      // Unlike cuPointerGetAttribute, a missing host pointer is not an error here.
      const bool no_host_pointer =
          found.device && !found.device->managed && attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER;
      const CUresult result =
          no_host_pointer ? give<void*>(data[i], nullptr) : answer(found, attributes[i], address, data[i]);
      if (result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute,
                                           CUdeviceptr address) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
    // No action needed: on return a synchronous copy is complete or ordered before all later work.
    const auto found = find(address).device;
    if (!found) return CUDA_ERROR_INVALID_VALUE;
    session_of(address, current_session())
        ->addresses()
        .set_sync_memops(found->address, *static_cast<const unsigned*>(value) != 0);
    return CUDA_SUCCESS;
  });
}
