// Kernel launches.
#include "server/softgpu/runtime/api/launch.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "protocol/calls/graph_edges.h"
#include "protocol/calls/launch_check.h"
#include "server/softgpu/runtime/api/call.h"
#include "server/softgpu/runtime/graph.h"

using namespace gpupool;
using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

CUresult check_shape(const LaunchShape& shape, const KernelInfo& kernel, const FunctionSettings& settings) {
  const cuda::LaunchShape asked{{shape.grid[0], shape.grid[1], shape.grid[2]},
                                {shape.block[0], shape.block[1], shape.block[2]},
                                shape.shared_bytes};
  cuda::LaunchLimits most;
  most.max_threads_per_block = kMaxThreadsPerBlock;
  most.max_block[0] = limits::kMaxBlockX, most.max_block[1] = limits::kMaxBlockY,
  most.max_block[2] = limits::kMaxBlockZ;
  most.max_grid[0] = limits::kMaxGridX, most.max_grid[1] = limits::kMaxGridY,
  most.max_grid[2] = limits::kMaxGridZ;
  most.registers_per_block = limits::kRegisters;
  most.function_registers = kernel.registers;
  most.function_max_threads = kernel.max_threads;
  most.max_dynamic_shared_bytes = static_cast<uint64_t>(max_dynamic_shared(kernel, settings));
  if (const CUresult result = cuda::check_launch(asked, most); result != CUDA_SUCCESS) return result;
  const auto& required = kernel.required_block;
  const bool fits =
      required[0] == 0 || (shape.block[0] == required[0] && shape.block[1] == std::max(required[1], 1u) &&
                           shape.block[2] == std::max(required[2], 1u));
  return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Reads CU_LAUNCH_PARAM_BUFFER_POINTER and _BUFFER_SIZE: one buffer with all parameters.
bool pack_extra(const KernelInfo& kernel, void** extra, PackedParameters& packed) {
  const void* buffer = nullptr;
  const size_t* size = nullptr;
  for (int i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
    if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = extra[i + 1];
    } else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      size = static_cast<const size_t*>(extra[i + 1]);
    } else {
      return false;
    }
  }
  if (kernel.parameters.empty()) return true;
  // The last parameter may be cut off: NCCL's kernels take 4 KiB but are passed only the bytes that they
  // read.
  if (buffer == nullptr || size == nullptr || *size <= kernel.parameters.back().offset) return false;
  std::memcpy(packed.data(), buffer, std::min(*size, packed.size()));
  return true;
}

bool pack_each(const KernelInfo& kernel, void** parameters, PackedParameters& packed) {
  if (kernel.parameters.empty()) return true;
  if (parameters == nullptr) return false;
  for (size_t i = 0; i < kernel.parameters.size(); ++i) {
    if (parameters[i] == nullptr) return false;
    std::memcpy(packed.data() + kernel.parameters[i].offset, parameters[i], kernel.parameters[i].size);
  }
  return true;
}

// Every block of a cooperative grid must be resident at once. The executor could run more, but programs rely
// on the error.
bool fits_at_once(const LaunchShape& shape, const Context& context) {
  const uint64_t blocks = uint64_t{shape.grid[0]} * shape.grid[1] * shape.grid[2];
  const uint64_t threads = uint64_t{shape.block[0]} * shape.block[1] * shape.block[2];
  const auto each =
      std::min<uint64_t>(limits::kBlocksPerMultiprocessor, limits::kThreadsPerMultiprocessor / threads);
  return blocks <= each * static_cast<uint64_t>(context.multiprocessor_count());
}

CUresult check_events(const Stream& stream, std::span<const CUlaunchAttribute> attributes) {
  for (const CUlaunchAttribute& attribute : attributes) {
    const auto recorded = cuda::launch_event(attribute);
    if (!recorded) continue;
    const Ref<Event> event = find<Event>(recorded->event);
    if (!event || &event->context().root() != &stream.context().root()) return CUDA_ERROR_INVALID_HANDLE;
    if (recorded->flags != 0) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

// A softgpu kernel triggers no event before its end, so events are recorded behind it. In a capture, the
// edges from the kernel have the attribute's port.
CUresult record_events(Stream& stream, CUstream handle, std::span<const CUlaunchAttribute> attributes) {
  for (const CUlaunchAttribute& attribute : attributes) {
    const auto recorded = cuda::launch_event(attribute);
    if (!recorded) continue;
    if (const CUresult result = cuEventRecord(recorded->event, handle); result != CUDA_SUCCESS) return result;
    std::lock_guard guard(graph_mutex());
    const Ref<Capture> capture = stream.capture();
    if (!capture || !stream.context().device().has_programmatic_edges()) continue;
    find<Event>(recorded->event)
        ->set_capture(capture, {{capture->frontier[&stream].back().node, recorded->edge}});
  }
  return CUDA_SUCCESS;
}

void serialize_captured(Stream& stream, std::span<const CUlaunchAttribute> attributes) {
  if (!std::any_of(attributes.begin(), attributes.end(), cuda::serializes_programmatically)) return;
  std::lock_guard guard(graph_mutex());
  const Ref<Capture> capture = stream.capture();
  if (capture && stream.context().device().has_programmatic_edges())
    cuda::serialize_programmatically(capture->frontier[&stream]);
}

CUresult launch(CUfunction handle, const LaunchShape& shape, CUstream stream_handle, void** parameters,
                void** extra, std::span<const CUlaunchAttribute> attributes = {}) {
  return call_on_stream(stream_handle, [&](Stream& stream) {
    Ref<Op> op;
    CUresult result = check_events(stream, attributes);
    if (result == CUDA_SUCCESS)
      result = make_launch(stream.context(), handle_value(handle), shape, parameters, extra, &op);
    if (result == CUDA_SUCCESS) {
      serialize_captured(stream, attributes);
      result = stream.context().enqueue(stream, op);
    }
    if (result == CUDA_SUCCESS) result = record_events(stream, stream_handle, attributes);
    const bool blocks = runtime().config().launch_blocking && !stream.capturing();
    return result == CUDA_SUCCESS && blocks ? stream.context().synchronize(stream) : result;
  });
}

}  // namespace

namespace gpupool::softgpu::api {

CUresult choose_cluster(const Function& function, const uint32_t (&cluster)[3], GridRequest* request) {
  constexpr uint64_t kPortableBlocks = 8;
  const KernelInfo& kernel = function.kernel();
  const auto required = required_cluster(kernel, function.settings());
  uint64_t blocks = 1;
  for (size_t d = 0; d < 3; ++d) {
    uint32_t size = cluster[d];
    if (cluster[0] == 0) {
      if (required[0] == 0) return kernel.needs_cluster ? CUDA_ERROR_INVALID_CLUSTER_SIZE : CUDA_SUCCESS;
      size = static_cast<uint32_t>(required[d]);
    } else if (kernel.required_cluster[0] != 0 && kernel.required_cluster[d] != size) {
      return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    }
    if (size == 0 || size > kMaxClusterBlocks || request->grid_dim[d] % size != 0)
      return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    request->cluster_dim[d] = size;
    blocks *= size;
  }
  const uint64_t most = function.settings().get(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 0) != 0
                            ? kMaxClusterBlocks
                            : kPortableBlocks;
  return blocks <= most ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CLUSTER_SIZE;
}

CUresult make_launch(Context& context, uint64_t handle, const LaunchShape& shape, void** parameters,
                     void** extra, Ref<Op>* op) {
  Ref<Function> function;
  if (const CUresult result = resolve_function(context, handle, &function); result != CUDA_SUCCESS)
    return result;
  if (&function->context() != &context.root()) return CUDA_ERROR_INVALID_HANDLE;
  const KernelInfo& kernel = function->kernel();
  if (const CUresult result = check_shape(shape, kernel, function->settings()); result != CUDA_SUCCESS)
    return result;
  if (parameters != nullptr && extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (shape.cooperative && !fits_at_once(shape, context)) return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;

  GridRequest request;
  request.params.resize(kernel.parameter_bytes);
  request.packed_parameters = extra != nullptr;
  const bool packed = extra != nullptr ? pack_extra(kernel, extra, request.params)
                                       : pack_each(kernel, parameters, request.params);
  if (!packed) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = function->code(&request.code); result != CUDA_SUCCESS) return result;
  if (const CUresult result = context.reserve_local_memory(kernel.local_bytes); result != CUDA_SUCCESS)
    return result;
  request.kernel_name = kernel.name;
  std::copy(std::begin(shape.grid), std::end(shape.grid), request.grid_dim);
  if (kernel.blocks_are_clusters)
    for (size_t d = 0; d < 3; ++d) request.grid_dim[d] *= kernel.required_cluster[d];
  if (const CUresult result = choose_cluster(*function, shape.cluster, &request); result != CUDA_SUCCESS)
    return result;
  std::copy(std::begin(shape.block), std::end(shape.block), request.block_dim);
  request.static_shared_bytes = kernel.static_shared_bytes;
  request.dynamic_shared_bytes = shape.shared_bytes;
  request.local_bytes = kernel.local_bytes;
  request.stack_bytes = context.stack_bytes();
  request.module_data = function->data_address();
  request.services = function->services();
  request.cooperative = shape.cooperative;
  request.multiprocessors = context.multiprocessors();
  const uint64_t kernel_handle = function->handle == handle ? 0 : handle;
  *op = make_ref<GridOp>(std::move(function), std::move(request), kernel_handle);
  return CUDA_SUCCESS;
}

CUresult read_launch_attributes(const CUlaunchAttribute* attributes, unsigned count, LaunchShape* shape) {
  if (count != 0 && attributes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    switch (static_cast<int>(attributes[i].id)) {
      case CU_LAUNCH_ATTRIBUTE_COOPERATIVE: shape->cooperative = attributes[i].value.cooperative != 0; break;
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: {
        const auto& cluster = attributes[i].value.clusterDim;
        if (cluster.x == 0 || cluster.y == 0 || cluster.z == 0) return CUDA_ERROR_INVALID_VALUE;
        shape->cluster[0] = cluster.x;
        shape->cluster[1] = cluster.y;
        shape->cluster[2] = cluster.z;
        break;
      }
      default:
        // Hints: priorities, cache windows. launch() handles events and programmatic serialization.
        if (!cuda::is_launch_attribute(attributes[i].id)) return CUDA_ERROR_INVALID_VALUE;
        break;
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace gpupool::softgpu::api

CUDA_EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                    unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                    unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                    void** parameters, void** extra) {
  return launch(function, {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, false},
                stream, parameters, extra);
}

CUDA_EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                               unsigned int grid_z, unsigned int block_x,
                                               unsigned int block_y, unsigned int block_z,
                                               unsigned int shared_bytes, CUstream stream,
                                               void** parameters) {
  return launch(function, {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, true}, stream,
                parameters, nullptr);
}

CUDA_EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters,
                                      void** extra) {
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  LaunchShape shape{{config->gridDimX, config->gridDimY, config->gridDimZ},
                    {config->blockDimX, config->blockDimY, config->blockDimZ},
                    config->sharedMemBytes,
                    false};
  const CUresult result = read_launch_attributes(config->attrs, config->numAttrs, &shape);
  return result != CUDA_SUCCESS
             ? result
             : launch(function, shape, config->hStream, parameters, extra, {config->attrs, config->numAttrs});
}

// --- Deprecated launch calls: parameters and shape are set on the function first ---

namespace {

template <class Body>
CUresult change_legacy_launch(CUfunction handle, const Body& body) noexcept {
  return call_in_context([&](Context& context) {
    Ref<Function> function;
    if (const CUresult result = resolve_function(context, handle_value(handle), &function);
        result != CUDA_SUCCESS) {
      return result;
    }
    std::lock_guard guard(function->legacy_launch_mutex);
    return body(function->legacy_launch, function->kernel().parameter_bytes);
  });
}

CUresult set_old_parameter(CUfunction function, int offset, const void* value, size_t bytes) {
  return change_legacy_launch(function, [&](Function::LegacyLaunch& old, uint32_t) {
    if (offset < 0 || value == nullptr || offset + bytes > static_cast<size_t>(limits::kParameterBytes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (old.params.size() < static_cast<size_t>(offset) + bytes)
      old.params.resize(static_cast<size_t>(offset) + bytes);
    std::memcpy(old.params.data() + offset, value, bytes);
    return CUDA_SUCCESS;
  });
}

CUresult launch_old(CUfunction handle, int grid_x, int grid_y, CUstream stream) {
  Function::LegacyLaunch old;
  const CUresult result =
      change_legacy_launch(handle, [&](const Function::LegacyLaunch& set, uint32_t bytes) {
        old = set;
        if (old.params.size() < bytes) old.params.resize(bytes);  // parameters that were not set are zeros
        return CUDA_SUCCESS;
      });
  if (result != CUDA_SUCCESS) return result;
  if (grid_x <= 0 || grid_y <= 0) return CUDA_ERROR_INVALID_VALUE;
  size_t bytes = old.params.size();
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, old.params.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  return launch(handle,
                {{static_cast<uint32_t>(grid_x), static_cast<uint32_t>(grid_y), 1},
                 {old.block[0], old.block[1], old.block[2]},
                 old.shared_bytes,
                 false},
                stream, nullptr, extra);
}

}  // namespace

CUDA_EXPORT CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z) {
  return change_legacy_launch(function, [&](Function::LegacyLaunch& old, uint32_t) {
    if (x <= 0 || y <= 0 || z <= 0) return CUDA_ERROR_INVALID_VALUE;
    old.block[0] = static_cast<uint32_t>(x);
    old.block[1] = static_cast<uint32_t>(y);
    old.block[2] = static_cast<uint32_t>(z);
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuFuncSetSharedSize(CUfunction function, unsigned int bytes) {
  return change_legacy_launch(function, [&](Function::LegacyLaunch& old, uint32_t) {
    old.shared_bytes = bytes;
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuParamSetSize(CUfunction function, unsigned int bytes) {
  return change_legacy_launch(function, [&](Function::LegacyLaunch& old, uint32_t) {
    if (bytes > static_cast<unsigned>(limits::kParameterBytes)) return CUDA_ERROR_INVALID_VALUE;
    old.params.resize(bytes);
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuParamSeti(CUfunction function, int offset, unsigned int value) {
  return set_old_parameter(function, offset, &value, sizeof value);
}
CUDA_EXPORT CUresult cuParamSetf(CUfunction function, int offset, float value) {
  return set_old_parameter(function, offset, &value, sizeof value);
}
CUDA_EXPORT CUresult cuParamSetv(CUfunction function, int offset, void* value, unsigned int bytes) {
  return set_old_parameter(function, offset, value, bytes);
}
CUDA_EXPORT CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream) {
  return launch_old(function, width, height, stream);
}
