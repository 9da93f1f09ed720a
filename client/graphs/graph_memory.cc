#include "client/graphs/graph_memory.h"

namespace gpupool::client {
namespace {

class NodeMemory final : public cuda::GraphMemory {
 public:
  NodeMemory(uint64_t address, uint64_t bytes, const Context& context)
      : GraphMemory(address, bytes, context.device->ordinal, context.handle) {}
  ~NodeMemory() override {
    if (!forget()) return;
    if (auto* const owner = handles().find_as<Context>(Kind::context, context)) free_memory(*owner, address);
  }
};

}  // namespace

CUresult graph_memory::allocate(Context& context, uint64_t bytes, Shared* memory) {
  CUdeviceptr address = 0;
  if (const CUresult result = allocate_memory(context, bytes, &address); result != CUDA_SUCCESS)
    return result;
  *memory = std::make_shared<NodeMemory>(address, bytes, context);
  cuda::graph_memory::add(*memory);
  return CUDA_SUCCESS;
}

}  // namespace gpupool::client
