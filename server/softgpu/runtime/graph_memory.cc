#include "server/softgpu/runtime/graph_memory.h"

#include "server/softgpu/runtime/context.h"
#include "server/softgpu/runtime/device.h"
#include "server/softgpu/runtime/runtime.h"

namespace gpupool::softgpu {
namespace {

class NodeMemory final : public cuda::GraphMemory {
 public:
  NodeMemory(uint64_t address, uint64_t bytes, CUdevice device, uint64_t context, uint64_t id)
      : GraphMemory(address, bytes, device, context), id_(id) {}
  ~NodeMemory() override {
    if (!forget()) return;
    // The range may have been freed with its context, and the address reused: compare the ids.
    const auto range =
        runtime().memory().take(address, [&](const MemoryRange& found) { return found.id == id_; });
    if (range) runtime().release(*range);
  }

 private:
  const uint64_t id_;  // MemoryRange::id
};

}  // namespace

CUresult allocate_graph_memory(Context& context, uint64_t bytes, cuda::graph_memory::Shared* memory) {
  Device& device = context.device();
  const auto address = device.allocate(bytes);
  if (!address) return CUDA_ERROR_OUT_OF_MEMORY;
  MemoryRange range;
  range.address = *address;
  range.size = bytes;
  range.kind = MemoryKind::graph;
  range.device = device.index();
  range.context = context.root().handle();
  if (!runtime().memory().add(range)) {
    device.heap().free(*address);
    return CUDA_ERROR_UNKNOWN;
  }
  const auto added = runtime().memory().find(*address);
  *memory =
      std::make_shared<NodeMemory>(*address, bytes, device.index(), range.context, added ? added->id : 0);
  cuda::graph_memory::add(*memory);
  return CUDA_SUCCESS;
}

void ReleaseMemoryOp::start() {
  memory_.reset();
  complete();
}

}  // namespace gpupool::softgpu
