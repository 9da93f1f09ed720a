// The parts of each kind of graph node that the kinds do not share (graph_node_kinds.h). A node's parameters
// are checked like those of the immediate call.
#include "client/api/graph_node_kinds.h"

#include <algorithm>
#include <utility>

#include "client/api/graph.h"
#include "client/streams/stream_order.h"

using namespace gpupool;
using namespace gpupool::client;

CUresult gpupool::client::context_for(CUcontext given, Context** context) {
  CUresult result = CUDA_SUCCESS;
  *context =
      given ? handles().find_as<Context>(Kind::context, cuda::handle_bits(given)) : current_context(&result);
  if (*context) return CUDA_SUCCESS;
  return given ? CUDA_ERROR_INVALID_CONTEXT : result;
}

namespace gpupool::client::node_kinds {

// --- Kernels ---

namespace {

// Returns the node's present parameters. The addresses stay the same while the node's kernels have parameters
// of the same sizes.
void** return_parameters(GraphNode& node, const KernelWork& kernel, const Function* function) {
  const size_t count = function ? function->parameters.size() : 0;
  const auto same_layout = [&](const auto& returned) {
    return returned->values.size() == kernel.launch.parameter_bytes && returned->addresses.size() == count;
  };
  auto found = std::find_if(node.returned_parameters.begin(), node.returned_parameters.end(), same_layout);
  if (found == node.returned_parameters.end()) {
    node.returned_parameters.push_back(std::make_unique<ReturnedParameters>());
    found = node.returned_parameters.end() - 1;
    (*found)->values.resize(kernel.launch.parameter_bytes);
    (*found)->addresses.resize(count);
  }
  ReturnedParameters& returned = **found;
  const auto first =
      kernel.tail.begin() + static_cast<ptrdiff_t>(kernel.launch.attribute_count * sizeof(CUlaunchAttribute));
  std::copy_n(first, returned.values.size(), returned.values.begin());
  for (size_t i = 0; i < count; ++i) {
    const auto& parameter = function->parameters[i];
    const bool there = parameter.offset + parameter.size <= returned.values.size();
    returned.addresses[i] = there ? returned.values.data() + parameter.offset : nullptr;
  }
  return returned.addresses.data();
}

template <class Params>
void get_kernel(GraphNode& node, Params& params) {
  const auto& kernel = std::get<KernelWork>(node.work);
  params.func = cuda::handle_from_bits<CUfunction>(kernel.launch.function);
  params.gridDimX = kernel.launch.grid[0];
  params.gridDimY = kernel.launch.grid[1];
  params.gridDimZ = kernel.launch.grid[2];
  params.blockDimX = kernel.launch.block[0];
  params.blockDimY = kernel.launch.block[1];
  params.blockDimZ = kernel.launch.block[2];
  params.sharedMemBytes = kernel.launch.shared_bytes;
  params.kernelParams = return_parameters(node, kernel, find_function(params.func));
  params.extra = nullptr;
}

}  // namespace

CUresult kernel::make(const NodePlace& place, NodeWork& work, const CUDA_KERNEL_NODE_PARAMS* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  Context* context = place.context;
#if CUDA_VERSION >= 12000
  if (!params->func && params->ctx) {
    if (const CUresult result = context_for(params->ctx, &context); result != CUDA_SUCCESS) return result;
  }
#endif
  return context ? make_kernel(*params, *context, &work.emplace<KernelWork>()) : CUDA_ERROR_INVALID_CONTEXT;
}

void kernel::keep(const NodeWork& before, NodeWork& after) {
  auto& made = std::get<KernelWork>(after);
  const auto& known = std::get<KernelWork>(before);
  made.set_attributes(known.attributes());
  made.launch.flags = known.launch.flags;
}

void kernel::read(GraphNode& node, CUDA_KERNEL_NODE_PARAMS& params) {
  get_kernel(node, params);
#if CUDA_VERSION >= 12000
  params.kern = nullptr;
  if (cuda::kind_of(cuda::handle_bits(params.func)) == Kind::kernel) {
    params.kern = reinterpret_cast<CUkernel>(std::exchange(params.func, nullptr));
  } else if (const Function* const function = find_function(params.func)) {
    // The runtime (cudart) uses it to find the program's name of the kernel.
    params.kern = cuda::handle_from_bits<CUkernel>(function->kernel);
  }
  params.ctx = cuda::handle_from_bits<CUcontext>(node.context);
#endif
}

#if CUDA_VERSION >= 12000
CUresult kernel::make(const NodePlace& place, NodeWork& work, const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_KERNEL_NODE_PARAMS made = newest(*params);
  return make(place, work, &made);
}

CUcontext kernel::context_of(const CUDA_KERNEL_NODE_PARAMS* params) {
  return params && !params->func ? params->ctx : nullptr;
}

void kernel::read(GraphNode& node, CUDA_KERNEL_NODE_PARAMS_v1& params) {
  get_kernel(node, params);
}
#endif

// --- Copies and fills ---

CUresult copy::make(const NodePlace& place, NodeWork& work, const CUDA_MEMCPY3D* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  return place.context ? make_copy(*params, *place.context, &work.emplace<CopyWork>())
                       : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult fill::make(const NodePlace& place, NodeWork& work, const CUDA_MEMSET_NODE_PARAMS* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  if (!place.context) return CUDA_ERROR_INVALID_CONTEXT;
  CUDA_MEMSET_NODE_PARAMS checked = *params;
  if (checked.height == 0) checked.height = 1;
  if (const CUresult result = check_fill(checked, *place.context); result != CUDA_SUCCESS) return result;
  work = FillWork{*params};
  return CUDA_SUCCESS;
}

// --- Host functions, events, memory operations ---

CUresult host_function::make(const NodePlace&, NodeWork& work, const CUDA_HOST_NODE_PARAMS* params) {
  if (!params || !params->fn) return CUDA_ERROR_INVALID_VALUE;
  work = HostWork{*params};
  return CUDA_SUCCESS;
}

CUresult make_event(NodeWork& work, CUevent event) {
  if (!handles().find(Kind::event, cuda::handle_bits(event))) return CUDA_ERROR_INVALID_HANDLE;
  stream_order().invalidate_event(cuda::handle_bits(event));  // a launch may record the event
  work = EventWork{cuda::handle_bits(event)};
  return CUDA_SUCCESS;
}

#if CUDA_VERSION >= 11070
CUresult memory_operations::make(const NodePlace&, NodeWork& work,
                                 const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  if (!params || !params->paramArray || params->count == 0 || params->count > 256)
    return CUDA_ERROR_INVALID_VALUE;
  work = OperationsWork{{params->paramArray, params->paramArray + params->count}, params->flags};
  return CUDA_SUCCESS;
}

void memory_operations::read(GraphNode& node, CUDA_BATCH_MEM_OP_NODE_PARAMS& params) {
  auto& work = std::get<OperationsWork>(node.work);
  params = {cuda::handle_from_bits<CUcontext>(node.context), static_cast<unsigned>(work.operations.size()),
            work.operations.data(), work.flags};
}
#endif

// --- Child graphs ---

CUresult child_graph::make(const NodePlace& place, NodeWork& work, CUgraph handle) {
  const Graph* const child = find_graph(handle);
  if (!child || child == place.graph) return CUDA_ERROR_INVALID_VALUE;
  if (child->has_memory() || child->has_conditions()) return CUDA_ERROR_NOT_SUPPORTED;
  auto copy = child->clone();
  if (!copy || publish(copy) == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  work = ChildWork{std::move(copy)};
  return CUDA_SUCCESS;
}

}  // namespace gpupool::client::node_kinds
