// The device memory of a graph's memory node (protocol/calls/graph_memory.h). It is allocated when the node
// is made, at the address that the node reports, and freed when no graph, launch in flight or program can use
// it any more, or with its context. Thread-safe.
#pragma once
#include "protocol/calls/graph_memory.h"
#include "server/softgpu/runtime/op.h"

namespace gpupool::softgpu {

class Context;

// Allocates on the context's device. CUDA_ERROR_OUT_OF_MEMORY if that is full.
CUresult allocate_graph_memory(Context& context, uint64_t bytes, cuda::graph_memory::Shared* memory);

// Drops its reference to the memory in stream order.
class ReleaseMemoryOp final : public Op {
 public:
  explicit ReleaseMemoryOp(cuda::graph_memory::Shared memory) : memory_(std::move(memory)) {}

 private:
  void start() override;
  void skip() override { start(); }
  cuda::graph_memory::Shared memory_;
};

}  // namespace gpupool::softgpu
