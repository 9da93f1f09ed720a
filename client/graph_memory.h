// Memory of a graph's memory nodes. It is allocated when the node is made, at the address that the node gives, and freed when neither
// the graph, nor what was made executable of it, nor the program can use it any more: so the address stays what it is from launch
// to launch, and the tenant's quota holds. Any thread; no lock of graphs is needed.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "client/call.h"

namespace gpupool::client {

struct GraphMemory {
  GraphMemory(uint64_t address, uint64_t bytes, Context& context);
  ~GraphMemory();
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;

  const uint64_t address;
  const uint64_t bytes;
  const uint64_t context;
  const Device* const device;
};

namespace graph_memory {

using Shared = std::shared_ptr<GraphMemory>;

// In the context's device.
CUresult allocate(Context& context, uint64_t bytes, Shared* memory);
// Null: no memory node's.
Shared find(uint64_t address);
// A launch leaves the program what its graph allocates and does not free, and frees what others have left. CUDA_ERROR_INVALID_VALUE: the program has
// some of it still. `again`: then it is the same as if it had freed it.
CUresult launch(const std::vector<Shared>& allocated, const std::vector<Shared>& freed, bool again);
// cuMemFree and cuMemFreeAsync. nullopt: it is no memory node's.
std::optional<CUresult> free(uint64_t address);

// Of a device, in bytes: now, and the most since it was last set to 0.
struct Use {
  uint64_t current = 0, most = 0;
};
Use use(const Device& device);
void forget_most(const Device& device);

}  // namespace graph_memory

// client/calls/memory.cc
CUresult allocate_memory(Context& context, uint64_t bytes, CUdeviceptr* address, bool managed = false);
void free_memory(Context& context, CUdeviceptr address);

}  // namespace gpupool::client
