// Accounts for the memory of graphs' memory nodes in a driver library. The client library and softgpu each
// derive a class that frees the memory.
//
// The memory exists from the creation of its node until neither the graph, nor its executable graphs, nor the
// program can use it any more, so that its address is the same in every launch. Any thread; callers need not
// lock graphs.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "protocol/driver/cuda_header.h"

namespace gpupool::cuda {

class GraphMemory {
 public:
  // `context`: a number that differs from those of other live contexts. The memory ends with its context.
  GraphMemory(uint64_t address, uint64_t bytes, CUdevice device, uint64_t context)
      : address(address), bytes(bytes), device(device), context(context) {}
  virtual ~GraphMemory() = default;
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;

  const uint64_t address;
  const uint64_t bytes;
  const CUdevice device;
  const uint64_t context;

 protected:
  // To be called by a derived class before it frees the memory, because its address may be reused at once.
  // False: the context was destroyed together with the memory, which must not be freed.
  bool forget() const;
};

namespace graph_memory {

using Shared = std::shared_ptr<GraphMemory>;

void add(const Shared& memory);
// Null: the address is not a memory node's.
Shared find(uint64_t address);
// Checks a launch that leaves the program the memory `allocated`: its graph allocates it and does not free
// it. CUDA_ERROR_INVALID_VALUE: the program still has some of it from an earlier launch (allowed if `again`:
// auto free on launch), or a context was destroyed together with some of it.
CUresult check_launch(const std::vector<Shared>& allocated, bool again);
// To be called once the launch is in its stream. `freed`: memory from earlier launches that the graph frees.
void commit_launch(const std::vector<Shared>& allocated, const std::vector<Shared>& freed);
// To be called when a context is destroyed or reset, before its addresses can be reused: forgets its memory.
void forget_context(uint64_t context);
// Implements cuMemFree and cuMemFreeAsync. nullopt: the address is not a memory node's. The caller keeps
// *gone as long as queued work may use the memory.
std::optional<CUresult> free(uint64_t address, Shared* gone);

// Implements cuDeviceGetGraphMemAttribute and cuDeviceSetGraphMemAttribute for an existing device. Memory is
// given back as soon as no graph needs it, so that as much is reserved as is used, and there is nothing to
// trim.
CUresult attribute(CUdevice device, CUgraphMem_attribute attribute, void* value);
CUresult set_attribute(CUdevice device, CUgraphMem_attribute attribute, const void* value);

}  // namespace graph_memory
}  // namespace gpupool::cuda
