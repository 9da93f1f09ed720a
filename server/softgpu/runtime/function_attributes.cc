// Attributes and occupancy of kernels (module.h).
#include <algorithm>

#include "server/softgpu/runtime/device.h"
#include "server/softgpu/runtime/module.h"

namespace gpupool::softgpu {
namespace {

int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

int max_dynamic_shared(const KernelInfo& kernel, const FunctionSettings& settings) {
  const int beside_static =
      std::max(limits::kSharedPerBlock - static_cast<int>(kernel.static_shared_bytes), 0);
  return settings.get(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, beside_static);
}

std::array<int, 3> required_cluster(const KernelInfo& kernel, const FunctionSettings& settings) {
  if (kernel.required_cluster[0] == 0) {
    return {settings.get(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 0),
            settings.get(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT, 0),
            settings.get(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH, 0)};
  }
  std::array<int, 3> size;
  for (size_t d = 0; d < 3; ++d) size[d] = static_cast<int>(kernel.required_cluster[d]);
  return size;
}

int blocks_per_multiprocessor(const KernelInfo& kernel, const FunctionSettings& settings, int block_size,
                              size_t dynamic_shared) {
  if (block_size > static_cast<int>(kernel.max_threads)) return 0;
  if (dynamic_shared > static_cast<size_t>(max_dynamic_shared(kernel, settings))) return 0;
  const int threads = round_up(block_size, static_cast<int>(kWarpSize));
  int blocks = std::min(limits::kBlocksPerMultiprocessor, limits::kThreadsPerMultiprocessor / threads);
  const int registers = round_up(static_cast<int>(std::max(kernel.registers, 1u)), 8) * threads;
  // The number of registers is an estimate, which must not keep a kernel from running: at least one block.
  blocks = std::min(blocks, std::max(limits::kRegisters / registers, 1));
  const int shared = round_up(static_cast<int>(kernel.static_shared_bytes + dynamic_shared),
                              static_cast<int>(kSharedAllocationUnit)) +
                     limits::kReservedSharedPerBlock;
  return std::min(blocks, limits::kSharedPerMultiprocessor / shared);
}

CUresult kernel_attribute(const KernelInfo& kernel, const FunctionSettings& settings,
                          uint32_t compute_capability, CUfunction_attribute attribute, int* value) {
  switch (static_cast<int>(attribute)) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = static_cast<int>(kernel.max_threads); break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = static_cast<int>(kernel.static_shared_bytes); break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: *value = static_cast<int>(kernel.constant_bytes); break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = static_cast<int>(kernel.local_bytes); break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = static_cast<int>(std::max(kernel.registers, 1u)); break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:  // CUB and Thrust choose their policy by it
      *value = static_cast<int>(kernel.ptx_target);
      break;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = static_cast<int>(compute_capability); break;
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA: *value = 0; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = max_dynamic_shared(kernel, settings);
      break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *value = settings.get(attribute, -1); break;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
      *value = kernel.needs_cluster || kernel.required_cluster[0] != 0;
      break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH: *value = required_cluster(kernel, settings)[0]; break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT: *value = required_cluster(kernel, settings)[1]; break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH: *value = required_cluster(kernel, settings)[2]; break;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: *value = settings.get(attribute, 0); break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult set_kernel_attribute(const KernelInfo& kernel, FunctionSettings& settings,
                              CUfunction_attribute attribute, int value) {
  switch (static_cast<int>(attribute)) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      if (value < 0 || value > limits::kSharedPerBlockOptIn - static_cast<int>(kernel.static_shared_bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
      break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
      if (kernel.required_cluster[0] != 0) return CUDA_ERROR_NOT_PERMITTED;
      if (value < 0) return CUDA_ERROR_INVALID_VALUE;
      break;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED: value = value != 0; break;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  settings.set(attribute, value);
  return CUDA_SUCCESS;
}

}  // namespace gpupool::softgpu
