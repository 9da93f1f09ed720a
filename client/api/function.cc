// Functions and kernels: attributes and parameters, answered from the look-up's reply.
#include <mutex>

#include "client/session/module.h"
#include "protocol/driver/exports.h"
#include "protocol/wire/images.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

CUresult find(CUfunction given, Function** function) {
  if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
  *function = find_function(given);
  return *function ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
#if CUDA_VERSION >= 12000
CUfunction as_function(CUkernel kernel) {
  return reinterpret_cast<CUfunction>(kernel);
}
#endif

bool is_known(int attribute) {
  return attribute >= 0 && attribute < static_cast<int>(wire::kFunctionAttributes);
}

[[maybe_unused]] CUresult parameter_info(CUfunction given, size_t index, size_t* offset, size_t* size) {
  Function* function = nullptr;
  if (const CUresult result = find(given, &function); result != CUDA_SUCCESS) return result;
  if (!offset || index >= function->parameters.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = function->parameters[index].offset;
  if (size) *size = function->parameters[index].size;
  return CUDA_SUCCESS;
}

// Serializes setting an attribute and caching its value, so that the cache cannot differ from the server
// after a race.
std::mutex& setting() {
  static auto* const only = new std::mutex;  // programs call the driver from exit handlers
  return *only;
}

// True if the function already has this value. CUTLASS sets attributes before each launch; only a change is
// sent to the server.
bool is_set_already(Function* function, CUfunction_attribute attribute, int value) {
  Session* session = nullptr;
  Context* context = nullptr;
  if (!is_known(attribute) || require_context(&session, &context) != CUDA_SUCCESS) return false;
  if (session->before_call(context) != CUDA_SUCCESS) return false;  // the forwarded call reports the error
  if (resolve_function(session, context, &function) != CUDA_SUCCESS) return false;
  return (function->explicit_attributes.load() >> attribute & 1) != 0 &&
         function->attributes[attribute].load() == value;
}

}  // namespace

CUDA_EXPORT CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction given) {
  Function* function = nullptr;
  if (const CUresult result = find(given, &function); result != CUDA_SUCCESS) return result;
  if (!value || !is_known(attribute)) return CUDA_ERROR_INVALID_VALUE;
  return guarded([&]() -> CUresult {
    if (const CUresult result = resolve_function(current_session(), current_context(), &function);
        result != CUDA_SUCCESS)
      return result;
    *value = function->attributes[attribute].load();
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuFuncSetAttribute(CUfunction given, CUfunction_attribute attribute, int value) {
  Function* function = nullptr;
  if (const CUresult result = find(given, &function); result != CUDA_SUCCESS) return result;
  return guarded([&]() -> CUresult {
    const std::lock_guard one_at_a_time(setting());
    if (is_set_already(function, attribute, value)) return CUDA_SUCCESS;
    if (const CUresult result = rows::cuFuncSetAttribute::forward(given, attribute, value);
        result != CUDA_SUCCESS)
      return result;
    if (!is_known(attribute)) return CUDA_SUCCESS;
    // A kernel stands for its function in the current context.
    const bool is_kernel = cuda::kind_of(function->handle) == Kind::kernel;
    if (auto* const kernel =
            is_kernel ? function : handles().find_as<Function>(Kind::kernel, function->kernel)) {
      kernel->attributes_vary = true;
    }
    if (const CUresult result = resolve_function(current_session(), current_context(), &function);
        result != CUDA_SUCCESS)
      return result;
    function->explicit_attributes |= 1u << attribute;
    function->attributes[attribute] = value;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuFuncGetModule(CUmodule* module, CUfunction given) {
  Function* function = nullptr;
  if (const CUresult result = find(given, &function); result != CUDA_SUCCESS) return result;
  if (!module) return CUDA_ERROR_INVALID_VALUE;
#if CUDA_VERSION >= 12000
  if (cuda::kind_of(function->owner) == Kind::library) {
    return cuLibraryGetModule(module, cuda::handle_from_bits<CUlibrary>(function->owner));
  }
#endif
  *module = cuda::handle_from_bits<CUmodule>(function->owner);
  return CUDA_SUCCESS;
}

#if CUDA_VERSION >= 12000
CUDA_EXPORT CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel,
                                          CUdevice device) {
  if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
  if (!find_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  // The look-up described the kernel on one device. Other devices may differ, so with several the server is
  // asked.
  if (devices().size() > 1) return rows::cuKernelGetAttribute::forward(value, attribute, kernel, device);
  Function* function = nullptr;
  if (const CUresult result = find(as_function(kernel), &function); result != CUDA_SUCCESS) return result;
  if (!value || !is_known(attribute)) return CUDA_ERROR_INVALID_VALUE;
  *value = function->attributes[attribute].load();  // not the values set on its functions
  return CUDA_SUCCESS;
}

CUDA_EXPORT CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                                          CUdevice device) {
  Function* function = nullptr;
  if (const CUresult result = find(as_function(kernel), &function); result != CUDA_SUCCESS) return result;
  return guarded([&]() -> CUresult {
    const std::lock_guard one_at_a_time(setting());
    const Device* const where = find_device(device);
    if (where && where->session->before_call(nullptr) == CUDA_SUCCESS) {
      const std::lock_guard lock(function->mutex);
      const auto set = function->set_for.find({device, attribute});
      if (set != function->set_for.end() && set->second == value) return CUDA_SUCCESS;
    }
    const CUresult result = rows::cuKernelSetAttribute::forward(attribute, value, kernel, device);
    if (result != CUDA_SUCCESS || !is_known(attribute)) return result;
    const std::lock_guard lock(function->mutex);
    function->set_for[{device, attribute}] = value;
    if (devices().size() > 1)
      function->attributes_vary = true;
    else
      function->attributes[attribute] = value;
    // Functions of this kernel in contexts of this device follow, unless they have a value of their own:
    // launches are checked against the function's attributes.
    for (const auto& [where, handle] : function->functions) {
      const auto* const context = handles().find_as<Context>(Kind::context, where.first);
      auto* const made = handles().find_as<Function>(Kind::function, handle);
      if (!made || !context || context->device->ordinal != device ||
          made->explicit_attributes.load() >> attribute & 1)
        continue;
      made->attributes[attribute] = value;
    }
    return CUDA_SUCCESS;
  });
}
#endif

#if CUDA_VERSION >= 12040
CUDA_EXPORT CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* size) {
  return parameter_info(function, index, offset, size);
}
CUDA_EXPORT CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* size) {
  return parameter_info(as_function(kernel), index, offset, size);
}
#endif

// NVIDIA's search: the block size with the most threads per multiprocessor, larger blocks first.
CUDA_EXPORT CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* min_grid, int* best_block,
                                                               CUfunction given,
                                                               CUoccupancyB2DSize shared_of_block,
                                                               size_t shared_bytes, int block_limit,
                                                               unsigned int flags) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
    Function* function = find_function(given);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    if (!min_grid || !best_block) return CUDA_ERROR_INVALID_VALUE;
    const auto attribute = [&](CUdevice_attribute id) {
      int value = 0;
      (void)cuDeviceGetAttribute(&value, id, context->device->ordinal);
      return value;
    };
    const int warp = std::max(1, attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE));
    int limit = std::min(attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
                         function->attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK].load());
    if (block_limit > 0) limit = std::min(limit, block_limit);
    int most_threads = 0;
    for (int block = (limit + warp - 1) / warp * warp; block > 0; block -= warp) {
      const int size = std::min(block, limit);
      const size_t shared = shared_of_block ? shared_of_block(size) : shared_bytes;
      int blocks = 0;
      const CUresult result = rows::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags::forward(
          &blocks, given, size, shared, flags);
      if (result != CUDA_SUCCESS) return result;
      if (blocks * size > most_threads) {
        most_threads = blocks * size;
        *best_block = size;
        *min_grid = blocks * attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
      }
      if (most_threads >= attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)) break;
    }
    return most_threads ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

namespace {

// Asks about the device of the given stream, or of the current context.
template <class Row>
CUresult ask_of_clusters(int* answer, CUfunction function, const CUlaunchConfig* config) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    CUstream stream = config ? config->hStream : nullptr;
    if (const CUresult result = require_stream(&session, &context, stream); result != CUDA_SUCCESS)
      return result;
    return Row::at({session, context}, {answer, function, config});
  });
}

}  // namespace

CUDA_EXPORT CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction function,
                                                  const CUlaunchConfig* config) {
  return ask_of_clusters<rows::cuOccupancyMaxActiveClusters>(clusters, function, config);
}
CUDA_EXPORT CUresult cuOccupancyMaxPotentialClusterSize(int* size, CUfunction function,
                                                        const CUlaunchConfig* config) {
  return ask_of_clusters<rows::cuOccupancyMaxPotentialClusterSize>(size, function, config);
}
