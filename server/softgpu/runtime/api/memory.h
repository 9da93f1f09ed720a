// Allocation shared by several calls.
#pragma once
#include "server/softgpu/runtime/context.h"
#include "server/softgpu/runtime/memory_map.h"

namespace gpupool::softgpu::api {

// From the device's heap, entered into the memory map.
CUresult allocate_device(Context& context, uint64_t size, MemoryKind kind, uint32_t flags, uint64_t* address);

}  // namespace gpupool::softgpu::api
