#include "server/worker/graphs/graph_work.h"

#include <algorithm>
#include <cstring>

#include "protocol/calls/graph_edges.h"
#include "protocol/wire/commands.h"
#include "server/worker/handlers/launch.h"
#include "server/worker/session/session.h"

namespace gpupool::worker {
namespace {

constexpr size_t kMostOperations = 256;  // per node, as in CUDA
// A device library may read as many parameter bytes as the kernel declares, so keep the buffer readable
// beyond what was sent.
constexpr size_t kReadable = wire::kMaxParameterBytes + 4;

// Returns the bytes from the first to the last byte of a box, or nullopt if the sizes are inconsistent or
// overflow.
std::optional<uint64_t> extent(uint64_t pitch, uint64_t slice_rows, uint64_t width, uint64_t height,
                               uint64_t depth) {
  uint64_t slice = 0, slices = 0, rows = 0, bytes = 0;
  if ((height > 1 && pitch < width) || __builtin_mul_overflow(pitch, slice_rows, &slice)) return std::nullopt;
  if (depth > 1 && slice_rows < height) return std::nullopt;
  if (__builtin_mul_overflow(slice, depth - 1, &slices) || __builtin_mul_overflow(pitch, height - 1, &rows) ||
      __builtin_add_overflow(slices, rows, &bytes) || __builtin_add_overflow(bytes, width, &bytes)) {
    return std::nullopt;
  }
  return bytes;
}

}  // namespace

std::optional<CUresult> NodeWork::read(Session& session, const wire::GraphNode& head, wire::Reader body) {
  using Kind = wire::GraphNodeKind;
  kind = head.kind;
  if (kind > Kind::conditional) return std::nullopt;
  if (kind == Kind::empty) return body.finished() ? std::optional(CUDA_SUCCESS) : std::nullopt;
  context = session.contexts.find(head.context);
  switch (kind) {
    case Kind::kernel: return read_kernel(session, body);
    case Kind::fill: return read_fill(session, body);
    case Kind::copy: return read_copy(session, body);
    case Kind::memory_operations: return read_operations(session, body);
    case Kind::condition:
    case Kind::conditional: return read_condition(session, body);
    case Kind::host: callback = body.get<wire::GraphHost>().callback; break;
    default: {
      event_handle = body.get<wire::GraphEvent>().event;
      const auto found = session.table.resolve(cuda::Kind::event, event_handle);
      if (!body.finished()) return std::nullopt;
      if (!found || !*found) return CUDA_ERROR_INVALID_HANDLE;
      event = static_cast<CUevent>(*found);
      session.contexts.stop_tracking_event(event);
    }
  }
  if (!body.finished()) return std::nullopt;
  return session.contexts.enter(context) == CUDA_SUCCESS && context ? CUDA_SUCCESS
                                                                    : CUDA_ERROR_INVALID_CONTEXT;
}

std::optional<CUresult> NodeWork::read_kernel(Session& session, wire::Reader body) {
  const auto read = commands::read_launch(body);
  if (!read) return std::nullopt;
#if CUDA_VERSION >= 12000
  const wire::Launch& launch = read->launch;
  if (!context || session.contexts.enter(context) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_CONTEXT;
  const auto node = session.table.resolve_launchable(launch.function);
  if (!node || !node->object) return CUDA_ERROR_INVALID_HANDLE;
  // The device may allocate local memory when the graph is instantiated. The command that uses the graph
  // reports this error.
  ContextState& owner = node->context ? *node->context : *context;
  if (const CUresult result = session.memory_charges.charge_local_memory(owner, *node);
      result != CUDA_SUCCESS)
    return result;
  // A kernel can run in any context, so the node names one. A kernel may stand in place of a function, as in
  // launches.
  if (cuda::kind_of(launch.function) == cuda::Kind::kernel) {
    kernel.kern = static_cast<CUkernel>(node->object);
    kernel.ctx = context->object;
  } else {
    kernel.func = static_cast<CUfunction>(node->object);
  }
  kernel.gridDimX = launch.grid[0];
  kernel.gridDimY = launch.grid[1];
  kernel.gridDimZ = launch.grid[2];
  kernel.blockDimX = launch.block[0];
  kernel.blockDimY = launch.block[1];
  kernel.blockDimZ = launch.block[2];
  kernel.sharedMemBytes = launch.shared_bytes;
  parameter_bytes_ = read->parameters.size();
  if (parameter_bytes_ != 0) {
    parameters_.resize(kReadable);
    std::memcpy(parameters_.data(), read->parameters.data(), parameter_bytes_);
    extra_ = {CU_LAUNCH_PARAM_BUFFER_POINTER, parameters_.data(), CU_LAUNCH_PARAM_BUFFER_SIZE,
              &parameter_bytes_, CU_LAUNCH_PARAM_END};
    kernel.extra = extra_.data();
  }
  attributes.resize(launch.attribute_count);
  if (!read->attributes.empty())
    std::memcpy(attributes.data(), read->attributes.data(), read->attributes.size());
  for (CUlaunchAttribute& attribute : attributes) {
    // The client has replaced these attributes by edges.
    if (cuda::is_launch_only_attribute(attribute)) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = commands::translate(session, attribute); result != CUDA_SUCCESS)
      return result;
  }
  return set_cooperation(session.api, (launch.flags & wire::kLaunchCooperative) != 0);
#else
  return CUDA_ERROR_NOT_SUPPORTED;
#endif
}

#if CUDA_VERSION >= 12000
// `wanted`: by the launch, beside what the attributes say.
CUresult NodeWork::set_cooperation(const DeviceApi& api, bool wanted) {
  std::erase_if(attributes, [&](const CUlaunchAttribute& attribute) {
    if (attribute.id != CU_LAUNCH_ATTRIBUTE_COOPERATIVE) return false;
    wanted |= attribute.value.cooperative != 0;
    return true;
  });
  if (!wanted) return CUDA_SUCCESS;
  CUlaunchAttribute cooperative{};
  cooperative.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  cooperative.value.cooperative = 1;
  attributes.push_back(cooperative);
  return pass_parameters_singly(api);
}

// NVIDIA's driver (580) does not make a node cooperative whose parameters are packed.
CUresult NodeWork::pass_parameters_singly(const DeviceApi& api) {
#if CUDA_VERSION >= 12040
  if (!api.cuFuncGetParamInfo || !api.cuKernelGetParamInfo) return CUDA_SUCCESS;
  const auto find = [&](size_t index, size_t* offset, size_t* size) {
    return kernel.kern ? api.cuKernelGetParamInfo(kernel.kern, index, offset, size)
                       : api.cuFuncGetParamInfo(kernel.func, index, offset, size);
  };
  size_t offset = 0, size = 0;
  for (size_t i = 0; find(i, &offset, &size) == CUDA_SUCCESS; ++i) {
    if (size > parameter_bytes_ || offset > parameter_bytes_ - size) return CUDA_ERROR_INVALID_VALUE;
    single_parameters_.push_back(parameters_.data() + offset);
  }
  kernel.kernelParams = single_parameters_.empty() ? nullptr : single_parameters_.data();
  kernel.extra = nullptr;
#endif
  return CUDA_SUCCESS;
}
#endif

std::optional<CUresult> NodeWork::read_fill(Session& session, wire::Reader body) {
  const auto asked = body.get<wire::GraphFill>();
  if (!body.finished()) return std::nullopt;
  if (!context || session.contexts.enter(context) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_CONTEXT;
  if ((asked.element != 1 && asked.element != 2 && asked.element != 4) || asked.width == 0 ||
      asked.height == 0)
    return CUDA_ERROR_INVALID_VALUE;
  uint64_t bytes = 0;
  if (asked.address % asked.element != 0 ||
      __builtin_mul_overflow(asked.width, uint64_t{asked.element}, &bytes))
    return CUDA_ERROR_INVALID_VALUE;
  const auto touched = extent(asked.pitch, asked.height, bytes, asked.height, 1);
  if (!touched || !session.memory.owns(asked.address, *touched)) return CUDA_ERROR_INVALID_VALUE;
  fill.dst = asked.address;
  fill.pitch = asked.pitch;
  fill.value = asked.value;
  fill.elementSize = asked.element;
  fill.width = asked.width;
  fill.height = asked.height;
  return CUDA_SUCCESS;
}

std::optional<CUresult> NodeWork::read_copy(Session& session, wire::Reader body) {
  if (body.remaining() == sizeof(CUDA_MEMCPY3D)) {
    copy = body.get<CUDA_MEMCPY3D>();
    if (!context || session.contexts.enter(context) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_CONTEXT;
    return guards::check_copy(copy);
  }
  const auto asked = body.get<wire::GraphCopy>();
  if (!body.finished()) return std::nullopt;
  if (!context || session.contexts.enter(context) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_CONTEXT;
  if (asked.width == 0 || asked.height == 0 || asked.depth == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto read = extent(asked.from_pitch, asked.from_height, asked.width, asked.height, asked.depth);
  const auto written = extent(asked.to_pitch, asked.to_height, asked.width, asked.height, asked.depth);
  if (!read || !written || !session.memory.owns(asked.from, *read) ||
      !session.memory.owns(asked.to, *written))
    return CUDA_ERROR_INVALID_VALUE;
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = asked.from;
  copy.srcPitch = asked.from_pitch;
  copy.srcHeight = asked.from_height;
  copy.dstDevice = asked.to;
  copy.dstPitch = asked.to_pitch;
  copy.dstHeight = asked.to_height;
  copy.WidthInBytes = asked.width;
  copy.Height = asked.height;
  copy.Depth = asked.depth;
  return CUDA_SUCCESS;
}

std::optional<CUresult> NodeWork::read_condition(Session& session, wire::Reader body) {
  if (kind == wire::GraphNodeKind::condition) {
    condition = body.get<wire::GraphCondition>();
    if (condition.at_launch > 1) return std::nullopt;
  } else {
    conditional = body.get<wire::GraphConditional>();
    const auto bytes = body.get_bytes(uint64_t{conditional.bodies} * sizeof(uint64_t));
    if (!body.ok() || conditional.bodies == 0 || conditional.bodies > wire::kMaxGraphBodies ||
        conditional.type > 2)
      return std::nullopt;
    bodies.resize(conditional.bodies);
    std::memcpy(bodies.data(), bytes.data(), bytes.size());
  }
  if (!body.finished()) return std::nullopt;
  return context && session.contexts.enter(context) == CUDA_SUCCESS ? CUDA_SUCCESS
                                                                    : CUDA_ERROR_INVALID_CONTEXT;
}

std::optional<CUresult> NodeWork::read_operations(Session& session, wire::Reader body) {
  const size_t bytes = body.remaining(), count = bytes / sizeof(CUstreamBatchMemOpParams);
  if (!body.ok() || count == 0 || count > kMostOperations || bytes % sizeof(CUstreamBatchMemOpParams) != 0)
    return std::nullopt;
  operations.resize(count);
  std::memcpy(operations.data(), body.get_bytes(bytes).data(), bytes);
  if (!context || session.contexts.enter(context) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_CONTEXT;
  return guards::check_operations(session.memory, operations);
}

}  // namespace gpupool::worker
