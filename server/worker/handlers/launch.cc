#include "server/worker/handlers/launch.h"

#include <cstring>

#include "server/worker/handlers/commands.h"

namespace gpupool::worker::commands {
namespace {

// By number, because older headers lack some of the names.
enum LaunchAttribute : unsigned {
  kIgnore = 0,
  kAccessPolicyWindow = 1,
  kCooperative = 2,
  kSynchronizationPolicy = 3,
  kClusterDimension = 4,
  kClusterSchedulingPolicy = 5,
  kProgrammaticStreamSerialization = 6,
  kProgrammaticEvent = 7,
  kPriority = 8,
  kMemSyncDomainMap = 9,
  kMemSyncDomain = 10,
  kPreferredClusterDimension = 11,
  kLaunchCompletionEvent = 12,
  kPreferredSharedMemoryCarveout = 14,
  kNvlinkCentricScheduling = 16,
};

// Returns the product of sizes that the client chose, or the largest number if it is too large.
uint64_t product(const uint32_t (&sizes)[3]) {
  uint64_t all = uint64_t{sizes[0]} * sizes[1];
  return __builtin_mul_overflow(all, sizes[2], &all) ? UINT64_MAX : all;
}

// Launches a kernel after charging its local memory to the quota.
template <class F>
CUresult launch_in_quota(Session& session, StreamState& stream, const HandleTable::Launchable& kernel,
                         const wire::Launch& said, F&& launch) {
  MemoryCharges& charges = session.memory_charges;
  ContextState& context = kernel.context ? *kernel.context : stream.context->owner();
  const ContextState::LocalMemory before = context.local;
  CUresult result = charges.charge_local_memory(context, kernel);
  if (result != CUDA_SUCCESS) return result;
  const WorkKind kind = kernel_kind(kernel.object, product(said.grid), product(said.block));
  result = session.compute.run(stream, kind, [&] {
    return session.timeline.measure(
        stream, {wire::TimelineKind::kernel, said.function, said.grid, said.block}, launch);
  });
  if (result == CUDA_ERROR_OUT_OF_MEMORY) charges.restore_local_memory(context, before);
  return result;
}

}  // namespace

std::optional<uint64_t> event_of(const CUlaunchAttribute& attribute) {
  const auto id = static_cast<unsigned>(attribute.id);
  if (id != kProgrammaticEvent && id != kLaunchCompletionEvent) return std::nullopt;
  uint64_t handle = 0;
  std::memcpy(&handle, &attribute.value, sizeof handle);  // both unions begin with the event
  return handle;
}

// Resolves handles, checks addresses, and rejects unknown attributes. All other attributes are plain values.
CUresult translate(Session& session, CUlaunchAttribute& attribute) {
  switch (static_cast<unsigned>(attribute.id)) {
    case kIgnore:
    case kCooperative:
    case kSynchronizationPolicy:
    case kClusterDimension:
    case kClusterSchedulingPolicy:
    case kProgrammaticStreamSerialization:
    case kPriority:
    case kMemSyncDomainMap:
    case kMemSyncDomain:
    case kPreferredClusterDimension:
    case kPreferredSharedMemoryCarveout:
    case kNvlinkCentricScheduling: return CUDA_SUCCESS;
    case kAccessPolicyWindow: {
      const auto& window = attribute.value.accessPolicyWindow;
      const auto base = reinterpret_cast<uintptr_t>(window.base_ptr);
      return window.num_bytes == 0 || session.memory.owns(base, window.num_bytes) ? CUDA_SUCCESS
                                                                                  : CUDA_ERROR_INVALID_VALUE;
    }
    case kProgrammaticEvent:
    case kLaunchCompletionEvent: {
      const auto event = session.table.resolve(cuda::Kind::event, *event_of(attribute));
      if (!event) return CUDA_ERROR_INVALID_HANDLE;
      session.contexts.stop_tracking_event(static_cast<CUevent>(*event));
      std::memcpy(&attribute.value, &*event, sizeof(void*));
      return CUDA_SUCCESS;
    }
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

std::optional<LaunchBody> read_launch(wire::Reader& body) {
  LaunchBody read{.launch = body.get<wire::Launch>()};
  const wire::Launch& launch = read.launch;
  if (launch.attribute_count > wire::kMaxLaunchAttributes ||
      launch.parameter_bytes > wire::kMaxParameterBytes ||
      (launch.flags & ~(wire::kLaunchCooperative | wire::kLaunchExtended)) != 0) {
    return std::nullopt;
  }
  read.attributes = body.get_bytes(launch.attribute_count * sizeof(CUlaunchAttribute));
  read.parameters = body.get_bytes(launch.parameter_bytes);
  if (!body.finished()) return std::nullopt;
  return read;
}

Outcome launch(Session& session, Command& command) {
  const auto body = read_launch(command.body);
  if (!body) return bad_body();
  const wire::Launch& launch = body->launch;
  const auto attribute_bytes = body->attributes, parameter_bytes = body->parameters;
  if (!session.contexts.enter_named(command.header.context)) return CUDA_ERROR_INVALID_CONTEXT;
  const auto kernel = session.table.resolve_launchable(launch.function);
  StreamState* const stream = session.table.use_stream(launch.stream);
  if (!kernel || !stream) return CUDA_ERROR_INVALID_HANDLE;
  const auto function = static_cast<CUfunction>(kernel->object);

  // Aligned, and readable beyond what was sent: a device library may read as many parameter bytes as the
  // kernel declares.
  alignas(64) static thread_local std::byte parameters[wire::kMaxParameterBytes + 4];
  if (!parameter_bytes.empty()) std::memcpy(parameters, parameter_bytes.data(), parameter_bytes.size());
  size_t size = parameter_bytes.size();
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, parameters, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  void** const packed = size != 0 ? extra : nullptr;

  if ((launch.flags & (wire::kLaunchCooperative | wire::kLaunchExtended)) == 0) {
    return launch_in_quota(session, *stream, *kernel, launch, [&] {
      return session.api.cuLaunchKernel(function, launch.grid[0], launch.grid[1], launch.grid[2],
                                        launch.block[0], launch.block[1], launch.block[2],
                                        launch.shared_bytes, stream->stream, nullptr, packed);
    });
  }
  if (!session.api.cuLaunchKernelEx) return CUDA_ERROR_NOT_SUPPORTED;
  // cuLaunchCooperativeKernel takes no packed parameters; use the equivalent attribute.
  CUlaunchAttribute attributes[wire::kMaxLaunchAttributes + 1] = {};
  unsigned count = launch.attribute_count;
  if (!attribute_bytes.empty()) std::memcpy(attributes, attribute_bytes.data(), attribute_bytes.size());
  for (unsigned i = 0; i < count; ++i) {
    if (const CUresult result = translate(session, attributes[i]); result != CUDA_SUCCESS) return result;
  }
  if ((launch.flags & wire::kLaunchCooperative) != 0) {
    attributes[count].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    attributes[count].value.cooperative = 1;
    ++count;
  }
  CUlaunchConfig config{};
  config.gridDimX = launch.grid[0];
  config.gridDimY = launch.grid[1];
  config.gridDimZ = launch.grid[2];
  config.blockDimX = launch.block[0];
  config.blockDimY = launch.block[1];
  config.blockDimZ = launch.block[2];
  config.sharedMemBytes = launch.shared_bytes;
  config.hStream = stream->stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return launch_in_quota(session, *stream, *kernel, launch,
                         [&] { return session.api.cuLaunchKernelEx(&config, function, nullptr, packed); });
}

}  // namespace gpupool::worker::commands
