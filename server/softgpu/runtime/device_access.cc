#include "server/softgpu/runtime/device_access.h"

#include <cstring>

#include "server/softgpu/jit/program.h"
#include "server/softgpu/memory/address_space.h"
#include "server/softgpu/runtime/device.h"
#include "server/softgpu/runtime/runtime.h"

namespace gpupool::softgpu {
namespace {

bool reaches(const Context& context, const MemoryRange& range) {
  const int device = context.device().index();
  switch (range.kind) {
    case MemoryKind::mapped: return range.grants(device, false);
    case MemoryKind::pool:
      return static_cast<const MemoryPool&>(*range.owner).access(device) != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    case MemoryKind::device:
    case MemoryKind::module_data:
    case MemoryKind::opened: return range.device == device || context.has_peer(range.context);
    default: return true;
  }
}

}  // namespace

std::optional<uint64_t> unreachable_parameter(const Context& context, const KernelInfo& kernel,
                                              const PackedParameters& parameters) {
  if (runtime().devices().size() == 1 || !runtime().config().rules.enforces(Rule::device_access))
    return std::nullopt;
  for (const KernelParameter& parameter : kernel.parameters) {
    uint64_t address = 0;
    if (parameter.size != sizeof address || parameter.alignment != sizeof address ||
        parameter.offset + sizeof address > parameters.size())
      continue;
    std::memcpy(&address, parameters.data() + parameter.offset, sizeof address);
    if (!in_range(address, 1)) continue;
    const auto range = runtime().memory().find(address);
    if (range && !reaches(context, *range)) return address;
  }
  return std::nullopt;
}

}  // namespace gpupool::softgpu
