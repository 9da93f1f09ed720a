// Kernel launches: checked here, packed into one message, queued. The hottest path of the client.
#include <algorithm>
#include <cstring>

#include "client/graphs/capture.h"
#include "client/memory/compared_copies.h"
#include "client/memory/host_memory.h"
#include "client/memory/mirrors.h"
#include "client/streams/cross_server.h"
#include "client/streams/stream_order.h"
#include "protocol/calls/graph_edges.h"
#include "protocol/calls/launch_check.h"
#include "protocol/driver/exports.h"
#include "protocol/wire/commands.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

struct Request {
  CUfunction function = nullptr;
  cuda::LaunchShape shape{};
  CUstream stream = nullptr;
  void** parameters = nullptr;
  void** extra = nullptr;
  uint32_t flags = 0;
  const CUlaunchAttribute* attributes = nullptr;
  uint32_t attribute_count = 0;
};

// `extra`: a packed buffer and its size, in any order, up to CU_LAUNCH_PARAM_END.
CUresult read_extra(void** extra, const void** bytes, size_t* size) {
  for (int i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
    if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
      *bytes = extra[i + 1];
    else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE)
      *size = *static_cast<size_t*>(extra[i + 1]);
    else
      return CUDA_ERROR_INVALID_VALUE;
  }
  return *size == 0 || *bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

cuda::LaunchLimits limits_of(const Device& device, const Function& function) {
  const auto of_device = [&](int id, uint32_t otherwise) {
    const auto found = device.attributes.find(id);
    return found == device.attributes.end() || found->second <= 0 ? otherwise
                                                                  : static_cast<uint32_t>(found->second);
  };
  const auto of_function = [&](int id, uint32_t otherwise) {
    const int value = function.attributes[id].load(std::memory_order_relaxed);
    return value > 0 ? static_cast<uint32_t>(value) : otherwise;
  };
  cuda::LaunchLimits limits;
  limits.max_threads_per_block = of_device(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024);
  for (int axis = 0; axis < 3; ++axis) {
    limits.max_block[axis] = of_device(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + axis, limits.max_block[axis]);
    limits.max_grid[axis] = of_device(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + axis, limits.max_grid[axis]);
  }
  limits.registers_per_block =
      of_device(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, limits.registers_per_block);
  limits.function_registers = of_function(CU_FUNC_ATTRIBUTE_NUM_REGS, 0);
  limits.function_max_threads =
      of_function(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, limits.max_threads_per_block);
  limits.max_dynamic_shared_bytes = of_function(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 48 * 1024);
  return limits;
}

// An event of a launch's attribute may be recorded before the kernel and earlier work have completed.
void invalidate_event_of(const CUlaunchAttribute& attribute) {
  if (const auto recorded = cuda::launch_event(attribute))
    stream_order().invalidate_event(cuda::handle_bits(recorded->event));
}

// True if the device may reject the launch for a reason that the client cannot check (clusters, cooperative
// grids). The launch then waits for the server's reply, so that the program gets the error from this call.
bool device_may_reject(const Request& request, const Device& device, const Function& function) {
  constexpr uint32_t kPortable = 8, kMost = 16;  // blocks per cluster: portable and hardware maximum
  const auto of_function = [&](int id) {
    return static_cast<uint32_t>(std::max(0, function.attributes[id].load(std::memory_order_relaxed)));
  };
  const uint32_t required[3] = {of_function(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH),
                                of_function(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT),
                                of_function(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH)};
  uint32_t cluster[3] = {required[0], required[1], required[2]};
  bool cooperative = (request.flags & wire::kLaunchCooperative) != 0;
  for (uint32_t i = 0; i < request.attribute_count; ++i) {
    const CUlaunchAttribute& attribute = request.attributes[i];
    const int id = static_cast<int>(attribute.id);
    if (id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) cooperative = attribute.value.cooperative != 0;
    if (id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue;
    const auto& asked = attribute.value.clusterDim;
    if (asked.x == 0 || asked.y == 0 || asked.z == 0) return true;
    if (required[0] != 0 && (asked.x != required[0] || asked.y != required[1] || asked.z != required[2]))
      return true;
    cluster[0] = asked.x, cluster[1] = asked.y, cluster[2] = asked.z;
  }
  if (cluster[0] == 0 && of_function(CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET) != 0) return true;
  uint64_t blocks = 1, threads = 1, in_cluster = 1;
  for (int axis = 0; axis < 3; ++axis) {
    const uint64_t size = std::max(cluster[axis], 1u);
    if (size > kMost || request.shape.grid[axis] % size != 0) return true;
    in_cluster *= size;
    blocks *= request.shape.grid[axis];
    threads *= request.shape.block[axis];
  }
  if (in_cluster >
      (of_function(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED) != 0 ? kMost : kPortable))
    return true;
  if (!cooperative) return false;
  const auto of_device = [&](int id) {
    const auto found = device.attributes.find(id);
    return found == device.attributes.end() ? 0 : static_cast<uint64_t>(std::max(0, found->second));
  };
  return blocks > of_device(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) *
                      (of_device(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR) / threads);
}

// Under a memory quota, returns the launch's local memory (bytes per thread) if it exceeds that of all
// earlier launches in the context, else 0. The server may have no room for it, and the program expects that
// error from this launch.
uint32_t more_local_memory(const Session& session, const Context& context, const Function& function) {
  const int bytes = function.attributes[CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES].load(std::memory_order_relaxed);
  if (bytes <= 0 || !session.memory_limited()) [[likely]]
    return 0;
  const uint64_t known = context.owner().local_memory.load(std::memory_order_relaxed);
  const bool of_now = known >> 32 == context.owner().epoch.load(std::memory_order_relaxed);
  return of_now && static_cast<uint32_t>(known) >= static_cast<uint32_t>(bytes)
             ? 0
             : static_cast<uint32_t>(bytes);
}

// A launch that passed the checks, in the form in which it is sent.
struct Prepared {
  Function* function = nullptr;
  bool may_be_rejected = false;
  uint32_t local_bytes = 0;  // result of more_local_memory()
  wire::Launch body{};
  const void* packed = nullptr;  // packed parameters; null: Request::parameters
};

CUresult prepare(const Request& request, Session& session, Context& context, Prepared& prepared) {
  Function* const function = find_function(request.function);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = function->ensure_loaded(session); result != CUDA_SUCCESS) return result;
  Function* settings = function;
  if (const CUresult result = resolve_function(&session, &context, &settings); result != CUDA_SUCCESS)
    return result;
  const auto limits = limits_of(*context.device, *settings);
  if (const CUresult result = cuda::check_launch(request.shape, limits); result != CUDA_SUCCESS)
    return result;
  if (request.attribute_count > wire::kMaxLaunchAttributes) return CUDA_ERROR_INVALID_VALUE;
  for (uint32_t i = 0; i < request.attribute_count; ++i) {
    if (!cuda::is_launch_attribute(request.attributes[i].id)) return CUDA_ERROR_INVALID_VALUE;
    invalidate_event_of(request.attributes[i]);
  }

  size_t packed_bytes = 0;
  if (request.extra) {
    if (request.parameters) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = read_extra(request.extra, &prepared.packed, &packed_bytes);
    if (result != CUDA_SUCCESS) return result;
    if (packed_bytes > wire::kMaxParameterBytes) return CUDA_ERROR_INVALID_VALUE;
  } else if (!function->parameters.empty() && !request.parameters) {
    return CUDA_ERROR_INVALID_VALUE;
  }

  prepared.function = function;
  prepared.local_bytes = more_local_memory(session, context, *settings);
  prepared.may_be_rejected =
      prepared.local_bytes != 0 || device_may_reject(request, *context.device, *settings);
  wire::Launch& body = prepared.body;
  body.function = function->handle;
  body.stream = cuda::handle_bits(request.stream);
  std::copy_n(request.shape.grid, 3, body.grid);
  std::copy_n(request.shape.block, 3, body.block);
  body.shared_bytes = static_cast<uint32_t>(request.shape.dynamic_shared_bytes);
  body.flags = request.flags;
  body.attribute_count = request.attribute_count;
  body.parameter_bytes = prepared.packed ? static_cast<uint32_t>(packed_bytes) : function->parameter_bytes;
  return CUDA_SUCCESS;
}

// Writes attributes and parameters.
void write_tail(wire::Writer& writer, const Request& request, const Prepared& prepared) {
  writer.put_bytes(request.attributes, request.attribute_count * sizeof(CUlaunchAttribute));
  if (prepared.packed) {
    writer.put_bytes(prepared.packed, prepared.body.parameter_bytes);
    return;
  }
  // Gaps between parameters are padding and sent as zeros.
  static constexpr std::byte kGap[64] = {};
  uint32_t at = 0;
  for (size_t i = 0; i < prepared.function->parameters.size(); ++i) {
    const auto& parameter = prepared.function->parameters[i];
    while (at < parameter.offset) {
      const uint32_t gap = std::min<uint32_t>(parameter.offset - at, sizeof kGap);
      writer.put_bytes(kGap, gap);
      at += gap;
    }
    writer.put_bytes(request.parameters[i], parameter.size);
    at += parameter.size;
  }
}

// Mirrors pinned memory that is named by packed kernel parameters.
CUresult reach_parameters(const std::byte* packed, uint32_t bytes, Session& session, Context& context) {
  for (uint32_t at = 0; session.addresses().has_hosts() && at + sizeof(uint64_t) <= bytes;
       at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, packed + at, sizeof word);
    if (!session.addresses().may_be_host(word)) continue;
    if (const CUresult result = reach_host_memory(word, context); result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult make_work(const Request& request, Context& context, KernelWork* work) {
  Prepared prepared;
  if (const CUresult result = prepare(request, *context.session, context, prepared); result != CUDA_SUCCESS)
    return result;
  for (size_t i = 0; request.parameters && i < prepared.function->parameters.size(); ++i) {
    if (!request.parameters[i]) return CUDA_ERROR_INVALID_VALUE;
  }
  work->launch = prepared.body;
  work->launch.stream = 0;
  work->tail.clear();
  wire::Writer writer(work->tail);
  write_tail(writer, request, prepared);
  auto attributes = work->attributes();
  std::erase_if(attributes, cuda::is_launch_only_attribute);
  work->set_attributes(attributes);
  return reach_parameters(work->tail.data() + work->launch.attribute_count * sizeof(CUlaunchAttribute),
                          prepared.body.parameter_bytes, *context.session, context);
}

// The same for parameters that are not packed.
CUresult reach_parameters(const Request& request, const Prepared& prepared, Session& session,
                          Context& context) {
  if (prepared.packed)
    return reach_parameters(static_cast<const std::byte*>(prepared.packed), prepared.body.parameter_bytes,
                            session, context);
  const auto& parameters = prepared.function->parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto* const bytes = static_cast<const std::byte*>(request.parameters[i]);
    if (const CUresult result = reach_parameters(bytes, parameters[i].size, session, context);
        result != CUDA_SUCCESS)
      return result;
  }
  return CUDA_SUCCESS;
}

template <class Write>
CUresult send(Session& session, Context& context, const Prepared& prepared, Write&& write) {
  if (host_memory().any_shared())
    note_host_memory_write(context, cuda::handle_from_bits<CUstream>(prepared.body.stream));
  const auto id = static_cast<uint16_t>(wire::Command::launch);
  if (!prepared.may_be_rejected) [[likely]]
    return session.post(id, &context, write);
  wire::Buffer reply;
  const uint64_t epoch = context.owner().epoch.load(std::memory_order_relaxed);
  const CUresult result = session.call(id, &context, write, reply);
  if (result == CUDA_SUCCESS && prepared.local_bytes != 0) {
    context.owner().local_memory.store(epoch << 32 | prepared.local_bytes, std::memory_order_relaxed);
  }
  return result;
}

// A launch while there is mirrored memory. The parameters may lie in it, and its blocks are moved while the
// command is queued, so the parameters are read first.
CUresult launch_with_mirrors(const Request& request, const Prepared& prepared, Session& session,
                             Context& context) {
  wire::Buffer tail;
  wire::Writer tail_writer(tail);
  write_tail(tail_writer, request, prepared);
  CUresult result = CUDA_SUCCESS;
  const auto lock = mirrors().before_work(context, request.stream, &result);
  if (result != CUDA_SUCCESS) return result;
  return send(session, context, prepared, [&](wire::Writer& writer) {
    writer.put(prepared.body);
    writer.put_bytes(tail.data(), tail.size());
  });
}

CUresult launch_now(const Request& request, Session& session, Context& context) {
  Prepared prepared;
  if (const CUresult result = prepare(request, session, context, prepared); result != CUDA_SUCCESS)
    return result;
  if (session.addresses().has_hosts()) [[unlikely]] {
    if (const CUresult result = reach_parameters(request, prepared, session, context); result != CUDA_SUCCESS)
      return result;
  }
  if (compared_copies().any()) [[unlikely]] {
    if (const CUresult result = compared_copies().before_work(context, request.stream);
        result != CUDA_SUCCESS)
      return result;
  }
  if (mirrors().any()) [[unlikely]]
    return launch_with_mirrors(request, prepared, session, context);
  return send(session, context, prepared, [&](wire::Writer& writer) {
    writer.put(prepared.body);
    write_tail(writer, request, prepared);
  });
}

CUresult launch(Request request, const char* caller = __builtin_FUNCTION()) {
  return guarded(caller, [&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_stream_for_work(&session, &context, request.stream);
        result != CUDA_SUCCESS) {
      return result;
    }
    const auto captured = capture::add(
        *context, request.stream, CU_GRAPH_NODE_TYPE_KERNEL,
        [&](NodeWork& work) { return make_work(request, *context, &work.emplace<KernelWork>()); },
        {request.attributes, request.attribute_count});
    if (captured) [[unlikely]]
      return *captured;
    const CUresult result = launch_now(request, *session, *context);
    if (result != CUDA_SUCCESS) return result;
    for (uint32_t i = 0; i < request.attribute_count; ++i) {
      if (const auto recorded = cuda::launch_event(request.attributes[i]))
        capture::forget_event(recorded->event);
    }
    return session->launch_blocking() ? synchronize_stream(*context, request.stream) : result;
  });
}

#if CUDA_VERSION >= 11060
CUresult launch_extended(const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra,
                         bool per_thread, const char* caller = __builtin_FUNCTION()) {
  if (!config || (config->numAttrs && !config->attrs)) return CUDA_ERROR_INVALID_VALUE;
  Request request;
  request.function = function;
  request.shape = {{config->gridDimX, config->gridDimY, config->gridDimZ},
                   {config->blockDimX, config->blockDimY, config->blockDimZ},
                   config->sharedMemBytes};
  request.stream = per_thread ? or_per_thread(config->hStream) : config->hStream;
  request.parameters = parameters;
  request.extra = extra;
  request.flags = wire::kLaunchExtended;
  request.attributes = config->attrs;
  request.attribute_count = config->numAttrs;
  return launch(request, caller);
}
#endif

}  // namespace

CUresult gpupool::client::make_kernel(const CUDA_KERNEL_NODE_PARAMS& params, Context& context,
                                      KernelWork* work) {
  Request request;
  request.function = params.func;
#if CUDA_VERSION >= 12000
  if (!request.function) request.function = reinterpret_cast<CUfunction>(params.kern);
#endif
  request.shape = {{params.gridDimX, params.gridDimY, params.gridDimZ},
                   {params.blockDimX, params.blockDimY, params.blockDimZ},
                   params.sharedMemBytes};
  request.parameters = params.kernelParams;
  request.extra = params.extra;
  return make_work(request, context, work);
}

#define LAUNCH_PARAMETERS                                                                                   \
  CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, \
      unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream,               \
      void **parameters
#define SHAPE \
  { {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes }

CUDA_EXPORT CUresult cuLaunchKernel(LAUNCH_PARAMETERS, void** extra) {
  return launch(
      {.function = function, .shape = SHAPE, .stream = stream, .parameters = parameters, .extra = extra});
}
CUDA_EXPORT CUresult cuLaunchKernel_ptsz(LAUNCH_PARAMETERS, void** extra) {
  return launch({.function = function,
                 .shape = SHAPE,
                 .stream = or_per_thread(stream),
                 .parameters = parameters,
                 .extra = extra});
}

CUDA_EXPORT CUresult cuLaunchCooperativeKernel(LAUNCH_PARAMETERS) {
  return launch({.function = function,
                 .shape = SHAPE,
                 .stream = stream,
                 .parameters = parameters,
                 .flags = wire::kLaunchCooperative});
}
CUDA_EXPORT CUresult cuLaunchCooperativeKernel_ptsz(LAUNCH_PARAMETERS) {
  return launch({.function = function,
                 .shape = SHAPE,
                 .stream = or_per_thread(stream),
                 .parameters = parameters,
                 .flags = wire::kLaunchCooperative});
}

#if CUDA_VERSION >= 11060
CUDA_EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters,
                                      void** extra) {
  return launch_extended(config, function, parameters, extra, false);
}
CUDA_EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction function,
                                           void** parameters, void** extra) {
  return launch_extended(config, function, parameters, extra, true);
}
#endif
