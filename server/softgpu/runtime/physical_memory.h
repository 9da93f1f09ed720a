// Physical memory of cuMemCreate. Its handle and every mapping of it hold a reference; it is charged to the
// device until the last of them is gone. Immutable once published, but for the atomic count; any thread.
#pragma once
#include <memory>

#include "protocol/driver/cuda_header.h"
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
  uint64_t handle = 0;                    // set before the object is published
  std::atomic<uint32_t> handle_count{1};  // 1 for its creation, plus retains, minus releases
};

}  // namespace gpupool::softgpu
