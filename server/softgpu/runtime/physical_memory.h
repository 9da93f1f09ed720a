// Memory of cuMemCreate: owned by its handle and by every mapping of it, charged to the device until the last
// one goes.
#pragma once
#include <memory>

#include "protocol/cuda/cuda_header.h"
#include "server/softgpu/memory/address_space.h"
#include "server/softgpu/runtime/handles.h"

namespace gpupool::softgpu {

class PhysicalMemory final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::physical_memory;
  PhysicalMemory(std::shared_ptr<Memory> memory, const CUmemAllocationProp& properties)
      : memory(std::move(memory)), properties(properties) {}

  const std::shared_ptr<Memory> memory;
  const CUmemAllocationProp properties;
  uint64_t handle = 0;                    // set once, before it is shown to anyone
  std::atomic<uint32_t> handle_count{1};  // creations, retains and releases of the handle
};

}  // namespace gpupool::softgpu
