// Pinned and registered host memory.
#include "server/softgpu/memory/address_space.h"
#include "server/softgpu/runtime/api/owner_call.h"
#include "server/softgpu/runtime/graph.h"

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

constexpr uint64_t kPageBytes = 4096;

uint64_t address_of(const void* pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}

}  // namespace

CUDA_EXPORT CUresult cuMemHostAlloc(void** pointer, size_t size, unsigned int flags) {
  return call_in_context([&](Context& context) {
    if (const CUresult refused = refuse_unsafe(); refused != CUDA_SUCCESS) return refused;
    constexpr unsigned kKnown =
        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    if (pointer == nullptr || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
    *pointer = nullptr;
    if (size == 0) return CUDA_SUCCESS;
    if (size > SIZE_MAX - kPageBytes) return CUDA_ERROR_OUT_OF_MEMORY;
    const uint64_t whole = (size + kPageBytes - 1) / kPageBytes * kPageBytes;
    const auto memory = allocate_host(whole, kPageBytes);
    if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
    MemoryRange range;
    range.address = *memory;
    range.size = whole;
    range.kind = MemoryKind::pinned;
    range.device = context.device().index();
    range.context = context.root().handle();
    range.flags = flags;
    if (!runtime().memory().add(range)) {
      free_host(*memory, whole);
      return CUDA_ERROR_UNKNOWN;
    }
    *pointer = reinterpret_cast<void*>(*memory);
    return charged(Cost::host_alloc, Cost::host_alloc_mib, size);
  });
}

namespace {
Ref<Context> owner_of(const void* pointer) {
  const auto range = runtime().memory().find(address_of(pointer));
  return range ? runtime().handles().find<Context>(range->context) : Ref<Context>();
}
}  // namespace

CUDA_EXPORT CUresult cuMemFreeHost(void* pointer) {
  if (pointer == nullptr) return call([] { return CUDA_SUCCESS; });
  return call_in_context_or([&] { return owner_of(pointer); },
                            [&](Context& context) {
                              const auto pinned = [](const MemoryRange& range) {
                                return range.kind == MemoryKind::pinned;
                              };
                              const auto range = runtime().memory().find(address_of(pointer));
                              if (!range || range->address != address_of(pointer) || !pinned(*range))
                                return CUDA_ERROR_INVALID_VALUE;
                              context.root().synchronize();
                              const auto taken = runtime().memory().take(address_of(pointer), pinned);
                              if (!taken) return CUDA_ERROR_INVALID_VALUE;
                              runtime().release(*taken);
                              costs().charge(Cost::host_free, Cost::host_free_mib, taken->size);
                              return context.error();
                            });
}

CUDA_EXPORT CUresult cuMemHostRegister_v2(void* pointer, size_t size, unsigned int flags) {
  return call_in_context([&](Context& context) {
    constexpr unsigned kKnown = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                                CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
    const uint64_t address = address_of(pointer);
    if (pointer == nullptr || size == 0 || address + size < address || (flags & ~kKnown) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if ((flags & CU_MEMHOSTREGISTER_IOMEMORY) != 0) return CUDA_ERROR_NOT_SUPPORTED;
    if (in_range(address, 1)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    MemoryRange range;
    range.address = address;
    range.size = size;
    range.kind = MemoryKind::registered;
    range.device = context.device().index();
    range.context = context.root().handle();
    range.flags = flags;
    range.writable = (flags & CU_MEMHOSTREGISTER_READ_ONLY) == 0;
    if (!runtime().memory().add(range)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    if (!register_host(address, size, !range.writable)) {
      runtime().memory().take(address, [](const MemoryRange&) { return true; });
      return CUDA_ERROR_INVALID_VALUE;
    }
    return charged(Cost::host_register, Cost::host_register_mib, size);
  });
}

CUDA_EXPORT CUresult cuMemHostUnregister(void* pointer) {
  return call_in_context_or([&] { return owner_of(pointer); },
                            [&](Context& context) {
                              if (pointer == nullptr) return CUDA_ERROR_INVALID_VALUE;
                              const auto registered = [](const MemoryRange& range) {
                                return range.kind == MemoryKind::registered;
                              };
                              const auto range = runtime().memory().find(address_of(pointer));
                              if (!range) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
                              // Pinned memory, or an address inside registered memory, is known but is not
                              // the start of a registration.
                              if (range->address != address_of(pointer) || !registered(*range))
                                return CUDA_ERROR_INVALID_VALUE;
                              context.root().synchronize();
                              const auto taken = runtime().memory().take(address_of(pointer), registered);
                              if (!taken) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
                              runtime().release(*taken);
                              costs().charge(Cost::host_unregister, Cost::host_unregister_mib, taken->size);
                              return context.error();
                            });
}

CUDA_EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* pointer, unsigned int flags) {
  return call_in_context([&](Context&) {
    if (address == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const auto range = runtime().memory().find(address_of(pointer));
    if (!range || !range->is_host()) return CUDA_ERROR_INVALID_VALUE;
    *address = address_of(pointer);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuMemHostGetFlags(unsigned int* flags, void* pointer) {
  return call_in_context([&](Context&) {
    const auto range = runtime().memory().find(address_of(pointer));
    if (flags == nullptr || !range || !range->is_host()) return CUDA_ERROR_INVALID_VALUE;
    // All host memory is mapped into the unified address space.
    *flags = range->flags | CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
  });
}
