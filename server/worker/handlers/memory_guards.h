// Wrappers for the rows of memory objects, their mappings and access to them (guards.h), which VirtualMemory
// and DeviceMemory own. Executor's thread.
#pragma once
#include "protocol/driver/cuda_header.h"

namespace gpupool::worker::guards {

CUresult create_memory(CUmemGenericAllocationHandle* handle, size_t size,
                       const CUmemAllocationProp* properties, unsigned long long flags);
CUresult release_memory(CUmemGenericAllocationHandle handle);
CUresult memory_info(size_t* free, size_t* total);
CUresult set_limit(CUlimit limit, size_t value);
CUresult memory_granularity(size_t* size, const CUmemAllocationProp* properties,
                            CUmemAllocationGranularity_flags option);
CUresult map_memory(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                    unsigned long long flags);
CUresult unmap_memory(CUdeviceptr address, size_t size);
CUresult set_memory_access(CUdeviceptr address, size_t size, const CUmemAccessDesc* access, size_t count);
CUresult get_memory_access(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address);
CUresult enable_peer(CUcontext peer, unsigned flags);
CUresult disable_peer(CUcontext peer);

}  // namespace gpupool::worker::guards
