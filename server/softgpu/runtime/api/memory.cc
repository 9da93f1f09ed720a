// Device memory. managed.cc has managed memory, mempool.cc stream-ordered allocation.
#include "server/softgpu/runtime/api/memory.h"

#include <algorithm>

#include "protocol/calls/graph_memory.h"
#include "server/softgpu/runtime/api/owner_call.h"
#include "server/softgpu/runtime/graph.h"

using namespace gpupool;
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
  return charged(Cost::mem_alloc, Cost::mem_alloc_mib, size);
}

}  // namespace gpupool::softgpu::api

CUDA_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t size) {
  return call_in_context([&](Context& context) {
    if (const CUresult refused = refuse_unsafe(); refused != CUDA_SUCCESS) return refused;
    if (address == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
    uint64_t memory = 0;
    const CUresult result = allocate_device(context, size, MemoryKind::device, 0, &memory);
    if (result == CUDA_SUCCESS) *address = memory;
    return result;
  });
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
  if (address == 0) return call([] { return refuse_unsafe(); });
  const auto owner_of = [&] {
    const auto range = runtime().memory().find(address);
    return range ? runtime().handles().find<Context>(range->context) : Ref<Context>();
  };
  return call_in_context_or(owner_of, [&](Context& current) {
    if (const CUresult refused = refuse_unsafe(); refused != CUDA_SUCCESS) return refused;
    cuda::graph_memory::Shared gone;
    if (const auto of_graph = cuda::graph_memory::free(address, &gone)) {
      if (*of_graph != CUDA_SUCCESS) return *of_graph;
      current.synchronize();
      if (const Ref<Context> owner = owner_of(); owner && owner.get() != &current) owner->synchronize();
      return current.error();
    }
    const auto range = runtime().memory().find(address);
    const auto freeable = [](const MemoryRange& candidate) {
      return !candidate.free_queued &&
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
    costs().charge(Cost::mem_free, Cost::mem_free_mib, taken->size);
    return current.error();
  });
}

CUDA_EXPORT CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  return call_in_context([&](Context& context) {
    if (free == nullptr && total == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const size_t all = context.device().shared().total_bytes();
    if (total != nullptr) *total = all;
    if (free != nullptr) *free = std::min<size_t>(context.device().shared().free_bytes(), all);
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
