#include "client/graph_memory.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

namespace gpupool::client {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<uint64_t, std::weak_ptr<GraphMemory>> known;  // by address
  std::map<uint64_t, std::shared_ptr<GraphMemory>> live;  // a launch has left it to the program
  std::map<const Device*, graph_memory::Use> use;
};
Registry& registry() {
  static Registry* const only = new Registry;
  return *only;
}
constinit std::atomic<size_t> count{0};  // of what is known

}  // namespace

GraphMemory::GraphMemory(uint64_t address, uint64_t bytes, Context& context)
    : address(address), bytes(bytes), context(context.handle), device(context.device) {}

GraphMemory::~GraphMemory() {
  {
    const std::lock_guard lock(registry().mutex);
    registry().known.erase(address);
    registry().use[device].current -= bytes;
    count.store(registry().known.size());
  }
  if (auto* const owner = handles().find_as<Context>(Kind::context, context)) free_memory(*owner, address);
}

namespace graph_memory {

CUresult allocate(Context& context, uint64_t bytes, Shared* memory) {
  CUdeviceptr address = 0;
  if (const CUresult result = allocate_memory(context, bytes, &address); result != CUDA_SUCCESS) return result;
  auto made = std::make_shared<GraphMemory>(address, bytes, context);
  const std::lock_guard lock(registry().mutex);
  registry().known[address] = made;
  Use& use = registry().use[context.device];
  use.current += bytes;
  use.most = std::max(use.most, use.current);
  count.store(registry().known.size());
  *memory = std::move(made);
  return CUDA_SUCCESS;
}

Shared find(uint64_t address) {
  if (count.load() == 0) return nullptr;
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().known.find(address);
  return found == registry().known.end() ? nullptr : found->second.lock();
}

CUresult launch(const std::vector<Shared>& allocated, const std::vector<Shared>& freed, bool again) {
  std::vector<Shared> gone;  // ends without the lock
  const std::lock_guard lock(registry().mutex);
  auto& live = registry().live;
  for (const Shared& memory : allocated) {
    if (!again && live.contains(memory->address)) return CUDA_ERROR_INVALID_VALUE;
  }
  for (const Shared& memory : allocated) live[memory->address] = memory;
  for (const Shared& memory : freed) {
    if (auto node = live.extract(memory->address)) gone.push_back(std::move(node.mapped()));
  }
  return CUDA_SUCCESS;
}

std::optional<CUresult> free(uint64_t address) {
  if (count.load() == 0) return std::nullopt;
  Shared gone;  // ends without the lock
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().known.find(address);
  if (found == registry().known.end()) return std::nullopt;
  auto node = registry().live.extract(address);
  if (!node) return CUDA_ERROR_INVALID_VALUE;
  gone = std::move(node.mapped());
  return CUDA_SUCCESS;
}

Use use(const Device& device) {
  const std::lock_guard lock(registry().mutex);
  return registry().use[&device];
}

void forget_most(const Device& device) {
  const std::lock_guard lock(registry().mutex);
  Use& use = registry().use[&device];
  use.most = use.current;
}

}  // namespace graph_memory
}  // namespace gpupool::client
