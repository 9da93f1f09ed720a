// The device memory of a graph's memory node (protocol/cuda/graph_memory.h). It comes from the session's address space like all other memory, so
// the tenant's quota holds. Any thread; no lock of graphs is needed.
#pragma once
#include "client/call.h"
#include "protocol/cuda/graph_memory.h"

namespace gpupool::client {

namespace graph_memory {

using cuda::graph_memory::check_launch;
using cuda::graph_memory::commit_launch;
using cuda::graph_memory::find;
using cuda::graph_memory::Shared;

// In the context's device.
CUresult allocate(Context& context, uint64_t bytes, Shared* memory);
// cuMemFree and cuMemFreeAsync: what is queued goes before the memory does. nullopt: it is no memory node's.
inline std::optional<CUresult> free(uint64_t address) {
  Shared gone;
  return cuda::graph_memory::free(address, &gone);
}

}  // namespace graph_memory

// client/calls/memory.cc
CUresult allocate_memory(Context& context, uint64_t bytes, CUdeviceptr* address, bool managed = false);
void free_memory(Context& context, CUdeviceptr address);

}  // namespace gpupool::client
