// Wrappers for the rows of multicast objects, which VirtualMemory owns (virtual_memory.h, guards.h).
// Executor's thread.
#pragma once
#include "protocol/driver/cuda_header.h"

#if CUDA_VERSION >= 12010
namespace gpupool::worker::guards {

CUresult create_multicast(CUmemGenericAllocationHandle* object, const CUmulticastObjectProp* properties);
CUresult add_multicast_device(CUmemGenericAllocationHandle object, CUdevice device);
CUresult bind_multicast_memory(CUmemGenericAllocationHandle object, size_t offset,
                               CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
                               unsigned long long flags);
CUresult bind_multicast_address(CUmemGenericAllocationHandle object, size_t offset, CUdeviceptr address,
                                size_t size, unsigned long long flags);
CUresult unbind_multicast(CUmemGenericAllocationHandle object, CUdevice device, size_t offset, size_t size);
CUresult multicast_granularity(size_t* granularity, const CUmulticastObjectProp* properties,
                               CUmulticastGranularity_flags option);

}  // namespace gpupool::worker::guards
#endif
