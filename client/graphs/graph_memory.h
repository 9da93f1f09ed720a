// Device memory of graph allocation nodes (protocol/calls/graph_memory.h). It comes from the session's
// address space like all other memory, so the tenant's quota applies. Used by the graph calls and the free
// calls. Thread-safe; needs no lock of graphs.
#pragma once
#include "client/session/call.h"
#include "protocol/calls/graph_memory.h"

namespace gpupool::client {

namespace graph_memory {

using cuda::graph_memory::check_launch;
using cuda::graph_memory::commit_launch;
using cuda::graph_memory::find;
using cuda::graph_memory::Shared;

// Allocates on the context's device.
CUresult allocate(Context& context, uint64_t bytes, Shared* memory);
// cuMemFree and cuMemFreeAsync of a node's memory. The memory is freed after work that is already queued.
// nullopt: the address is not a node's memory.
inline std::optional<CUresult> free(uint64_t address) {
  Shared gone;
  return cuda::graph_memory::free(address, &gone);
}

}  // namespace graph_memory

// client/api/memory.cc
CUresult allocate_memory(Context& context, uint64_t bytes, CUdeviceptr* address, bool managed = false);
void free_memory(Context& context, CUdeviceptr address);

}  // namespace gpupool::client
