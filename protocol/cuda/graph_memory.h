// Memory of graphs' memory nodes, as a driver library keeps account of it; each library derives its own kind, which frees the memory.
//
// The memory exists from when its node is made until neither the graph, nor what was made executable of it, nor the program can use it any
// more: so its address stays what it is from launch to launch. Any thread; no lock of graphs is needed.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "protocol/cuda/cuda_header.h"

namespace gpupool::cuda {

class GraphMemory {
 public:
  // `context`: any number that tells it from other contexts that are alive; the memory goes with it.
  GraphMemory(uint64_t address, uint64_t bytes, CUdevice device, uint64_t context) : address(address), bytes(bytes), device(device), context(context) {}
  virtual ~GraphMemory() = default;
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;

  const uint64_t address;
  const uint64_t bytes;
  const CUdevice device;
  const uint64_t context;

 protected:
  // A derived class calls it before it frees the memory, whose address may then be another's at once. False: its context was destroyed
  // and took the memory along, so it must not be freed.
  bool forget() const;
};

namespace graph_memory {

using Shared = std::shared_ptr<GraphMemory>;

void add(const Shared& memory);
// Null: no memory node's.
Shared find(uint64_t address);
// A launch leaves the program what its graph allocates and does not free, and frees what others have left. CUDA_ERROR_INVALID_VALUE: the program has
// some of it still, but for `again`, with which that is as if it had freed it; or a context that is gone took some of it along.
CUresult check_launch(const std::vector<Shared>& allocated, bool again);
// Once the launch is in its stream.
void commit_launch(const std::vector<Shared>& allocated, const std::vector<Shared>& freed);
// A context is being destroyed or reset, before its addresses can be another's: its memory is no graph's and no program's any more.
void forget_context(uint64_t context);
// cuMemFree and cuMemFreeAsync. nullopt: it is no memory node's. *gone: work that is queued may still use it.
std::optional<CUresult> free(uint64_t address, Shared* gone);

// Implements cuDeviceGetGraphMemAttribute and cuDeviceSetGraphMemAttribute for an existing device. Memory that no graph needs any more has gone
// back at once: so as much is reserved as is used, and there is nothing to trim.
CUresult attribute(CUdevice device, CUgraphMem_attribute attribute, void* value);
CUresult set_attribute(CUdevice device, CUgraphMem_attribute attribute, const void* value);

}  // namespace graph_memory
}  // namespace gpupool::cuda
