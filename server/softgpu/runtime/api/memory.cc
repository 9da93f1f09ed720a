// Device and managed memory.
#include "server/softgpu/runtime/api/memory.h"

#include <algorithm>

#include "server/softgpu/runtime/api/owner_call.h"

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace gpupool::softgpu::api {

CUresult allocate_device(Context& context, uint64_t size, MemoryKind kind, uint32_t flags,
                         uint64_t* address) {
  Device& device = context.device();
  const auto memory = device.allocate(size);
  if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
  MemoryRange range;
  range.address = *memory;
  range.size = size;
  range.kind = kind;
  range.device = device.index();
  range.context = context.root().handle();
  range.flags = flags;
  if (!runtime().memory().add(range)) {
    device.heap().free(*memory);
    return CUDA_ERROR_UNKNOWN;
  }
  *address = *memory;
  return CUDA_SUCCESS;
}

}  // namespace gpupool::softgpu::api

namespace {

CUresult allocate(CUdeviceptr* address, size_t size, MemoryKind kind, unsigned flags) {
  return call_in_context([&](Context& context) {
    if (address == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
    uint64_t memory = 0;
    const CUresult result = allocate_device(context, size, kind, flags, &memory);
    if (result == CUDA_SUCCESS) *address = memory;
    return result;
  });
}

}  // namespace

CUDA_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t size) {
  return allocate(address, size, MemoryKind::device, 0);
}

CUDA_EXPORT CUresult cuMemAllocManaged(CUdeviceptr* address, size_t size, unsigned int flags) {
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
  return allocate(address, size, MemoryKind::managed, flags);
}

CUDA_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width, size_t height,
                                        unsigned int element_size) {
  constexpr size_t kPitchMultiple = 512;
  if (pitch == nullptr || width == 0 || height == 0 || width > SIZE_MAX - kPitchMultiple) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (element_size != 4 && element_size != 8 && element_size != 16) return CUDA_ERROR_INVALID_VALUE;
  const size_t row = (width + kPitchMultiple - 1) / kPitchMultiple * kPitchMultiple;
  if (height > SIZE_MAX / row) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = cuMemAlloc_v2(address, row * height);
  if (result == CUDA_SUCCESS) *pitch = row;
  return result;
}

CUDA_EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
  if (address == 0) return runtime().state();
  const auto owner_of = [&] {
    const auto range = runtime().memory().find(address);
    return range ? runtime().handles().find<Context>(range->context) : Ref<Context>();
  };
  return call_in_context_or(owner_of, [&](Context& current) {
    const auto range = runtime().memory().find(address);
    const auto freeable = [](const MemoryRange& candidate) {
      return !candidate.freeing &&
             (candidate.kind == MemoryKind::device || candidate.kind == MemoryKind::managed ||
              candidate.kind == MemoryKind::pool);
    };
    if (!range || range->address != address || !freeable(*range)) return CUDA_ERROR_INVALID_VALUE;
    // Freeing waits for the work that may use the memory.
    const Ref<Context> owner = range->context == current.handle()
                                   ? Ref<Context>::share(&current)
                                   : runtime().handles().find<Context>(range->context);
    if (owner) owner->synchronize();
    if (owner.get() != &current) current.synchronize();
    const auto taken = runtime().memory().take(address, freeable);
    if (!taken) return CUDA_ERROR_INVALID_VALUE;
    runtime().release(*taken);
    return current.error();
  });
}

CUDA_EXPORT CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  return call_in_context([&](Context& context) {
    if (free == nullptr || total == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *total = context.device().shared().total_bytes();
    *free = std::min<size_t>(context.device().shared().free_bytes(), *total);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr address) {
  return call_in_context([&](Context&) {
    const auto range = runtime().memory().find(address);
    if (!range) return CUDA_ERROR_NOT_FOUND;
    if (base != nullptr) *base = range->address;
    if (size != nullptr) *size = range->size;
    return CUDA_SUCCESS;
  });
}

// Managed memory is in one place: advice and prefetches are checked and then have nothing to do.
namespace {

CUresult check_managed(CUdeviceptr address, size_t size) {
  const auto range = runtime().memory().find(address);
  if (size == 0 || !range || !range->is_managed()) return CUDA_ERROR_INVALID_VALUE;
  return runtime().memory().accessible(address, size, false) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult prefetch(CUdeviceptr address, size_t size, CUdevice device, CUstream handle) {
  return call_on_stream(handle, [&](Stream&) {
    if (device != CU_DEVICE_CPU && runtime().device(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    return check_managed(address, size);
  });
}

}  // namespace

CUDA_EXPORT CUresult cuMemAdvise(CUdeviceptr address, size_t size, CUmem_advise, CUdevice) {
  return call_in_context([&](Context&) { return check_managed(address, size); });
}
CUDA_EXPORT CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t size, CUdevice device, CUstream stream) {
  return prefetch(address, size, device, stream);
}
#if CUDA_VERSION >= 12020
CUDA_EXPORT CUresult cuMemAdvise_v2(CUdeviceptr address, size_t size, CUmem_advise, CUmemLocation) {
  return call_in_context([&](Context&) { return check_managed(address, size); });
}
CUDA_EXPORT CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t size, CUmemLocation location,
                                           unsigned int flags, CUstream stream) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return prefetch(address, size, location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : CU_DEVICE_CPU,
                  stream);
}
#endif
