#include "protocol/calls/graph_memory.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>

namespace gpupool::cuda {
namespace {

struct Use {
  uint64_t current = 0;
  uint64_t most = 0;  // high-water mark since it was last reset
};

struct Registry {
  std::mutex mutex;
  struct Known {
    const GraphMemory* memory;
    std::weak_ptr<GraphMemory> shared;
  };
  std::map<uint64_t, Known> known;                // by address
  std::map<uint64_t, graph_memory::Shared> live;  // left to the program by a launch; by address
  std::map<CUdevice, Use> use;                    // bytes
};
Registry& registry() {
  static Registry* const only = new Registry;
  return *only;
}
constinit std::atomic<size_t> count{0};  // size of Registry::known, for readers without the lock

// To be called with the lock held.
bool knows(const GraphMemory& memory) {
  const auto found = registry().known.find(memory.address);
  return found != registry().known.end() && found->second.memory == &memory;
}

}  // namespace

bool GraphMemory::forget() const {
  const std::lock_guard lock(registry().mutex);
  if (!knows(*this)) return false;
  registry().known.erase(address);
  registry().use[device].current -= bytes;
  count.store(registry().known.size());
  return true;
}

namespace graph_memory {

void add(const Shared& memory) {
  const std::lock_guard lock(registry().mutex);
  registry().known[memory->address] = {memory.get(), memory};
  Use& use = registry().use[memory->device];
  use.current += memory->bytes;
  use.most = std::max(use.most, use.current);
  count.store(registry().known.size());
}

Shared find(uint64_t address) {
  if (count.load() == 0) return nullptr;
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().known.find(address);
  return found == registry().known.end() ? nullptr : found->second.shared.lock();
}

CUresult check_launch(const std::vector<Shared>& allocated, bool again) {
  const std::lock_guard lock(registry().mutex);
  for (const Shared& memory : allocated) {
    if (!knows(*memory) || (!again && registry().live.contains(memory->address)))
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

void commit_launch(const std::vector<Shared>& allocated, const std::vector<Shared>& freed) {
  std::vector<Shared> gone;  // destroyed after the lock is released
  const std::lock_guard lock(registry().mutex);
  auto& live = registry().live;
  for (const Shared& memory : allocated) {
    if (knows(*memory)) gone.push_back(std::exchange(live[memory->address], memory));
  }
  for (const Shared& memory : freed) {
    if (auto node = live.extract(memory->address)) gone.push_back(std::move(node.mapped()));
  }
}

void forget_context(uint64_t context) {
  if (count.load() == 0) return;
  std::vector<Shared> gone;  // destroyed after the lock is released
  const std::lock_guard lock(registry().mutex);
  std::erase_if(registry().live, [&](auto& one) {
    if (one.second->context != context) return false;
    gone.push_back(std::move(one.second));
    return true;
  });
  std::erase_if(registry().known, [&](const auto& one) {
    const GraphMemory& memory = *one.second.memory;
    if (memory.context != context) return false;
    registry().use[memory.device].current -= memory.bytes;
    return true;
  });
  count.store(registry().known.size());
}

std::optional<CUresult> free(uint64_t address, Shared* gone) {
  if (count.load() == 0) return std::nullopt;
  const std::lock_guard lock(registry().mutex);
  if (!registry().known.contains(address)) return std::nullopt;
  auto node = registry().live.extract(address);
  if (!node) return CUDA_ERROR_INVALID_VALUE;
  *gone = std::move(node.mapped());
  return CUDA_SUCCESS;
}

CUresult attribute(CUdevice device, CUgraphMem_attribute attribute, void* value) {
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(registry().mutex);
  const Use& use = registry().use[device];
  switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
      *static_cast<cuuint64_t*>(value) = use.current;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
      *static_cast<cuuint64_t*>(value) = use.most;
      return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult set_attribute(CUdevice device, CUgraphMem_attribute attribute, const void* value) {
  const bool high =
      attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
  if (!value || !high || *static_cast<const cuuint64_t*>(value) != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(registry().mutex);
  Use& use = registry().use[device];
  use.most = use.current;
  return CUDA_SUCCESS;
}

}  // namespace graph_memory
}  // namespace gpupool::cuda
