// Functions: attributes, parameters, occupancy.
#include <algorithm>

#include "server/softgpu/runtime/api/call.h"
#include "server/softgpu/runtime/api/launch.h"
#include "server/softgpu/runtime/library.h"

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

// Wraps calls on a function. A library kernel's handle stands for its function in the current context.
template <class Body>
CUresult call_on_function(CUfunction handle, const Body& body) noexcept {
  return call_in_context([&](Context& context) {
    Ref<Function> function;
    const CUresult result = resolve_function(context, handle_value(handle), &function);
    return result != CUDA_SUCCESS ? result : body(*function);
  });
}

// Wraps calls for which NVIDIA's driver loads the function (rule lazy_loading).
template <class Body>
CUresult call_on_loaded_function(CUfunction handle, const Body& body) noexcept {
  return call_on_function(handle, [&](Function& function) {
    function.load();
    return body(function);
  });
}

// Multiprocessors of the current context; a green one has a subset of the device's.
int current_multiprocessors() {
  return current_context()->multiprocessor_count();
}

CUresult potential_block(int* grid, int* block, CUfunction handle, CUoccupancyB2DSize shared_of,
                         size_t shared, int limit) {
  return call_on_loaded_function(handle, [&](Function& function) {
    if (grid == nullptr || block == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const int most =
        std::min(static_cast<int>(function.kernel().max_threads), limit > 0 ? limit : limits::kMaxThreads);
    const int warp = static_cast<int>(kWarpSize);
    int best_threads = 0, best_size = 0, best_blocks = 0;
    // Find the largest block among those with the most threads per multiprocessor.
    for (int size = std::max(most / warp * warp, std::min(most, warp)); size > 0; size -= warp) {
      const size_t dynamic = shared_of != nullptr ? shared_of(size) : shared;
      const int blocks = blocks_per_multiprocessor(function.kernel(), function.settings(), size, dynamic);
      if (blocks * size > best_threads) {
        best_threads = blocks * size;
        best_size = size;
        best_blocks = blocks;
      }
    }
    *block = best_size;
    *grid = best_blocks * current_multiprocessors();
    return CUDA_SUCCESS;
  });
}

}  // namespace

CUDA_EXPORT CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction handle) {
  return call_on_loaded_function(handle, [&](Function& function) {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return kernel_attribute(function.kernel(), function.settings(),
                            function.context().device().compute_capability(), attribute, value);
  });
}

CUDA_EXPORT CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
  return call_on_loaded_function(handle, [&](Function& function) {
    return set_kernel_attribute(function.kernel(), function.settings(), attribute, value);
  });
}

CUDA_EXPORT CUresult cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache config) {
  return call_on_loaded_function(handle, [&](Function&) {
    return static_cast<unsigned>(config) > CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_ERROR_INVALID_VALUE
                                                                      : CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuFuncSetSharedMemConfig(CUfunction handle, CUsharedconfig config) {
  return call_on_loaded_function(handle, [&](Function&) {
    return static_cast<unsigned>(config) > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE
               ? CUDA_ERROR_INVALID_VALUE
               : CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuFuncGetModule(CUmodule* module, CUfunction handle) {
  return call_on_function(handle, [&](Function& function) {
    if (module == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *module = make_handle<CUmodule>(function.module_handle());
    return CUDA_SUCCESS;
  });
}

#if CUDA_VERSION >= 12030
CUDA_EXPORT CUresult cuFuncGetName(const char** name, CUfunction handle) {
  return call_on_function(handle, [&](Function& function) {
    if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *name = function.kernel().name.c_str();
    return CUDA_SUCCESS;
  });
}
#endif

#if CUDA_VERSION >= 12040
CUDA_EXPORT CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t* offset, size_t* size) {
  return call_on_function(handle, [&](Function& function) {
    const auto& parameters = function.kernel().parameters;
    if (offset == nullptr || index >= parameters.size()) return CUDA_ERROR_INVALID_VALUE;
    *offset = parameters[index].offset;
    if (size != nullptr) *size = parameters[index].size;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction handle) {
  return call_on_function(handle, [&](Function& function) {
    if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *state = function.loaded() ? CU_FUNCTION_LOADING_STATE_LOADED : CU_FUNCTION_LOADING_STATE_UNLOADED;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuFuncLoad(CUfunction handle) {
  return call_on_function(handle, [&](Function& function) {
    KernelCode code;
    return function.code(&code);
  });
}
#endif

CUDA_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction handle,
                                                                          int block_size,
                                                                          size_t dynamic_shared,
                                                                          unsigned int flags) {
  return call_on_loaded_function(handle, [&](Function& function) {
    if (blocks == nullptr || block_size <= 0 || (flags & ~1u) != 0) return CUDA_ERROR_INVALID_VALUE;
    *blocks = blocks_per_multiprocessor(function.kernel(), function.settings(), block_size, dynamic_shared);
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function,
                                                                 int block_size, size_t dynamic_shared) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size, dynamic_shared,
                                                              0);
}

CUDA_EXPORT CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, CUfunction handle, int blocks,
                                                             int block_size) {
  return call_on_loaded_function(handle, [&](Function& function) {
    if (bytes == nullptr || blocks <= 0 || block_size <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (blocks_per_multiprocessor(function.kernel(), function.settings(), block_size, 0) < blocks) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const int each = limits::kSharedPerMultiprocessor / blocks - limits::kReservedSharedPerBlock -
                     static_cast<int>(function.kernel().static_shared_bytes);
    *bytes = static_cast<size_t>(
        std::clamp(each / 128 * 128, 0, max_dynamic_shared(function.kernel(), function.settings())));
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, CUfunction function,
                                                               CUoccupancyB2DSize shared_of, size_t shared,
                                                               int limit, unsigned int flags) {
  if ((flags & ~1u) != 0) return CUDA_ERROR_INVALID_VALUE;
  return potential_block(grid, block, function, shared_of, shared, limit);
}

CUDA_EXPORT CUresult cuOccupancyMaxPotentialClusterSize(int* size, CUfunction handle,
                                                        const CUlaunchConfig* config) {
  return call_on_loaded_function(handle, [&](Function& function) {
    if (size == nullptr || config == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const bool any = function.settings().get(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 0) != 0;
    *size = any ? static_cast<int>(kMaxClusterBlocks) : 8;
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction handle,
                                                  const CUlaunchConfig* config) {
  return call_on_loaded_function(handle, [&](Function& function) {
    if (clusters == nullptr || config == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const uint64_t threads = uint64_t{config->blockDimX} * config->blockDimY * config->blockDimZ;
    if (threads == 0 || threads > static_cast<uint64_t>(limits::kMaxThreads)) return CUDA_ERROR_INVALID_VALUE;
    LaunchShape shape{};
    if (const CUresult result = read_launch_attributes(config->attrs, config->numAttrs, &shape);
        result != CUDA_SUCCESS)
      return result;
    GridRequest request;
    request.grid_dim[0] = config->gridDimX;
    request.grid_dim[1] = config->gridDimY;
    request.grid_dim[2] = config->gridDimZ;
    if (const CUresult result = choose_cluster(function, shape.cluster, &request); result != CUDA_SUCCESS)
      return result;
    const uint32_t* size = request.cluster_dim;
    *clusters = blocks_per_multiprocessor(function.kernel(), function.settings(), static_cast<int>(threads),
                                          config->sharedMemBytes) *
                current_multiprocessors() / static_cast<int>(std::max(size[0] * size[1] * size[2], 1u));
    return CUDA_SUCCESS;
  });
}
