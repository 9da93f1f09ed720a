// Allocation of device memory, for cuMemAlloc and cuMemAllocManaged. Any thread.
#pragma once
#include "server/softgpu/runtime/context.h"
#include "server/softgpu/runtime/memory_map.h"

namespace gpupool::softgpu::api {

// Allocates from the heap of the context's device and adds the memory to the memory map.
// CUDA_ERROR_OUT_OF_MEMORY.
CUresult allocate_device(Context& context, uint64_t size, MemoryKind kind, uint32_t flags, uint64_t* address);

}  // namespace gpupool::softgpu::api
