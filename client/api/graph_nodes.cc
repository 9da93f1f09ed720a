// Graph nodes: creation, and reading and changing their work. A node's parameters are checked like those of
// the immediate call.
#include <algorithm>
#include <cstring>
#include <utility>

#include "client/api/graph.h"
#include "client/streams/stream_order.h"
#include "protocol/calls/launch_check.h"
#include "protocol/driver/exports.h"
#include "protocol/wire/commands.h"

using namespace gpupool;
using namespace gpupool::client;

namespace gpupool::client {

CUresult context_for(CUcontext given, Context** context) {
  CUresult result = CUDA_SUCCESS;
  *context =
      given ? handles().find_as<Context>(Kind::context, cuda::handle_bits(given)) : current_context(&result);
  if (*context) return CUDA_SUCCESS;
  return given ? CUDA_ERROR_INVALID_CONTEXT : result;
}

CUresult make_kernel_work(const CUDA_KERNEL_NODE_PARAMS* params, Context* context, NodeWork& work) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
#if CUDA_VERSION >= 12000
  if (!params->func && params->ctx) {
    if (const CUresult result = context_for(params->ctx, &context); result != CUDA_SUCCESS) return result;
  }
#endif
  return context ? make_kernel(*params, *context, &work.emplace<KernelWork>()) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult make_copy_work(const CUDA_MEMCPY3D* params, Context* context, NodeWork& work) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  return context ? make_copy(*params, *context, &work.emplace<CopyWork>()) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult make_fill_work(const CUDA_MEMSET_NODE_PARAMS* params, Context* context, NodeWork& work) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  CUDA_MEMSET_NODE_PARAMS fill = *params;
  if (fill.height == 0) fill.height = 1;
  if (const CUresult result = check_fill(fill, *context); result != CUDA_SUCCESS) return result;
  work = FillWork{*params};
  return CUDA_SUCCESS;
}

CUresult make_host_work(const CUDA_HOST_NODE_PARAMS* params, NodeWork& work) {
  if (!params || !params->fn) return CUDA_ERROR_INVALID_VALUE;
  work = HostWork{*params};
  return CUDA_SUCCESS;
}

CUresult make_event_work(CUevent event, NodeWork& work) {
  if (!handles().find(Kind::event, cuda::handle_bits(event))) return CUDA_ERROR_INVALID_HANDLE;
  stream_order().invalidate_event(cuda::handle_bits(event));  // a launch may record the event
  work = EventWork{cuda::handle_bits(event)};
  return CUDA_SUCCESS;
}

CUresult make_operations_work(const CUDA_BATCH_MEM_OP_NODE_PARAMS* params, NodeWork& work) {
  if (!params || !params->paramArray || params->count == 0 || params->count > 256)
    return CUDA_ERROR_INVALID_VALUE;
  work = OperationsWork{{params->paramArray, params->paramArray + params->count}, params->flags};
  return CUDA_SUCCESS;
}

#if CUDA_VERSION >= 12000
CUDA_KERNEL_NODE_PARAMS newest(const CUDA_KERNEL_NODE_PARAMS_v1& params) {
  CUDA_KERNEL_NODE_PARAMS made{};
  made.func = params.func;
  made.gridDimX = params.gridDimX;
  made.gridDimY = params.gridDimY;
  made.gridDimZ = params.gridDimZ;
  made.blockDimX = params.blockDimX;
  made.blockDimY = params.blockDimY;
  made.blockDimZ = params.blockDimZ;
  made.sharedMemBytes = params.sharedMemBytes;
  made.kernelParams = params.kernelParams;
  made.extra = params.extra;
  return made;
}
#endif

}  // namespace gpupool::client

namespace {

// Adds a node with the work that `make` returns. Its context is `given` or, if null, the current one, if any.
template <class Make>
CUresult add(CUgraphNode* out, CUgraph handle, const CUgraphNode* dependencies, size_t count,
             CUgraphNodeType type, CUcontext given, Make&& make) {
  return on_graph(handle, [&](Graph& graph) -> CUresult {
    if (!out || (count != 0 && !dependencies)) return CUDA_ERROR_INVALID_VALUE;
    std::vector<GraphNode*> before;
    for (size_t i = 0; i < count; ++i) {
      GraphNode* const node = find_node(dependencies[i]);
      if (!node || node->graph != &graph) return CUDA_ERROR_INVALID_VALUE;
      before.push_back(node);
    }
    Context* context = nullptr;
    if (const CUresult result = context_for(given, &context); given && result != CUDA_SUCCESS) return result;
    NodeWork work;
    if (const CUresult result = make(context, work); result != CUDA_SUCCESS) return result;
    GraphNode* const node = graph.add(type, Session::handle_of(context), std::move(work), before);
    if (!node) return CUDA_ERROR_OUT_OF_MEMORY;
    *out = node_handle(*node);
    return CUDA_SUCCESS;
  });
}

template <class Body>
CUresult on_node_of(CUgraphNode handle, CUgraphNodeType type, Body&& body) {
  return on_node(handle,
                 [&](GraphNode& node) { return node.type == type ? body(node) : CUDA_ERROR_INVALID_VALUE; });
}

// Sets new work for a node, made in the node's context or, without one, in the current one.
template <class Make>
CUresult set(CUgraphNode handle, CUgraphNodeType type, Make&& make) {
  return on_node_of(handle, type, [&](GraphNode& node) -> CUresult {
    Context* context = nullptr;
    (void)context_for(cuda::handle_from_bits<CUcontext>(node.context), &context);
    NodeWork work;
    const CUresult result = make(context, work);
    if (result == CUDA_SUCCESS) node.work = std::move(work);
    return result;
  });
}

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
void get_kernel(GraphNode& node, Params* params) {
  const auto& kernel = std::get<KernelWork>(node.work);
  params->func = cuda::handle_from_bits<CUfunction>(kernel.launch.function);
  params->gridDimX = kernel.launch.grid[0];
  params->gridDimY = kernel.launch.grid[1];
  params->gridDimZ = kernel.launch.grid[2];
  params->blockDimX = kernel.launch.block[0];
  params->blockDimY = kernel.launch.block[1];
  params->blockDimZ = kernel.launch.block[2];
  params->sharedMemBytes = kernel.launch.shared_bytes;
  params->kernelParams = return_parameters(node, kernel, find_function(params->func));
  params->extra = nullptr;
}

CUresult get_kernel_v1(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return on_node_of(handle, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphNode& node) -> CUresult {
    if (!params) return CUDA_ERROR_INVALID_VALUE;
    get_kernel(node, params);
    return CUDA_SUCCESS;
  });
}

// Sets parameters; the attributes stay.
CUresult set_kernel(CUgraphNode handle, const CUDA_KERNEL_NODE_PARAMS* params) {
  return on_node_of(handle, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphNode& node) -> CUresult {
    Context* context = nullptr;
    (void)context_for(cuda::handle_from_bits<CUcontext>(node.context), &context);
    NodeWork work;
    if (const CUresult result = make_kernel_work(params, context, work); result != CUDA_SUCCESS)
      return result;
    const auto& before = std::get<KernelWork>(node.work);
    auto& after = std::get<KernelWork>(work);
    after.set_attributes(before.attributes());
    after.launch.flags = before.launch.flags;
    node.work = std::move(work);
    return CUDA_SUCCESS;
  });
}

template <class Work, class T, class Read>
CUresult get(CUgraphNode handle, CUgraphNodeType type, T* out, Read&& read) {
  return on_node_of(handle, type, [&](GraphNode& node) -> CUresult {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = read(std::get<Work>(node.work));
    return CUDA_SUCCESS;
  });
}

CUresult make_child(CUgraph handle, const Graph* parent, NodeWork& work) {
  const Graph* const child = find_graph(handle);
  if (!child || child == parent) return CUDA_ERROR_INVALID_VALUE;
  if (child->has_memory() || child->has_conditions()) return CUDA_ERROR_NOT_SUPPORTED;
  auto copy = child->clone();
  if (!copy || publish(copy) == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  work = ChildWork{std::move(copy)};
  return CUDA_SUCCESS;
}

CUevent event_of(const EventWork& work) {
  return cuda::handle_from_bits<CUevent>(work.event);
}

}  // namespace

#define NODE_ARGUMENTS CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count
#define NODE node, graph, dependencies, count

// --- Adding nodes ---

CUDA_EXPORT CUresult cuGraphAddMemcpyNode(NODE_ARGUMENTS, const CUDA_MEMCPY3D* params, CUcontext given) {
  return add(NODE, CU_GRAPH_NODE_TYPE_MEMCPY, given,
             [&](Context* context, NodeWork& work) { return make_copy_work(params, context, work); });
}
CUDA_EXPORT CUresult cuGraphAddMemsetNode(NODE_ARGUMENTS, const CUDA_MEMSET_NODE_PARAMS* params,
                                          CUcontext given) {
  return add(NODE, CU_GRAPH_NODE_TYPE_MEMSET, given,
             [&](Context* context, NodeWork& work) { return make_fill_work(params, context, work); });
}
CUDA_EXPORT CUresult cuGraphAddHostNode(NODE_ARGUMENTS, const CUDA_HOST_NODE_PARAMS* params) {
  return add(NODE, CU_GRAPH_NODE_TYPE_HOST, nullptr,
             [&](Context*, NodeWork& work) { return make_host_work(params, work); });
}
CUDA_EXPORT CUresult cuGraphAddEmptyNode(NODE_ARGUMENTS) {
  return add(NODE, CU_GRAPH_NODE_TYPE_EMPTY, nullptr, [](Context*, NodeWork&) { return CUDA_SUCCESS; });
}
CUDA_EXPORT CUresult cuGraphAddChildGraphNode(NODE_ARGUMENTS, CUgraph child) {
  return add(NODE, CU_GRAPH_NODE_TYPE_GRAPH, nullptr,
             [&](Context*, NodeWork& work) { return make_child(child, find_graph(graph), work); });
}
#if CUDA_VERSION >= 12030
CUresult gpupool::client::add_conditional_node(NODE_ARGUMENTS, CUDA_CONDITIONAL_NODE_PARAMS& params) {
  return add(NODE, CU_GRAPH_NODE_TYPE_CONDITIONAL, params.ctx, [&](Context*, NodeWork& work) {
    ConditionalWork made;
    const CUresult result = make_conditional_work(params, made);
    params.phGraph_out = made.body_handles.data();  // the array lives in the node
    work = std::move(made);
    return result;
  });
}
#endif
CUDA_EXPORT CUresult cuGraphAddEventRecordNode(NODE_ARGUMENTS, CUevent event) {
  return add(NODE, CU_GRAPH_NODE_TYPE_EVENT_RECORD, nullptr,
             [&](Context*, NodeWork& work) { return make_event_work(event, work); });
}
CUDA_EXPORT CUresult cuGraphAddEventWaitNode(NODE_ARGUMENTS, CUevent event) {
  return add(NODE, CU_GRAPH_NODE_TYPE_WAIT_EVENT, nullptr,
             [&](Context*, NodeWork& work) { return make_event_work(event, work); });
}
CUDA_EXPORT CUresult cuGraphAddMemAllocNode(NODE_ARGUMENTS, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  return add(NODE, CU_GRAPH_NODE_TYPE_MEM_ALLOC, nullptr,
             [&](Context* context, NodeWork& work) { return make_alloc_work(params, context, work); });
}
CUDA_EXPORT CUresult cuGraphAddMemFreeNode(NODE_ARGUMENTS, CUdeviceptr address) {
  return add(NODE, CU_GRAPH_NODE_TYPE_MEM_FREE, nullptr,
             [&](Context*, NodeWork& work) { return make_free_work(address, work); });
}
#if CUDA_VERSION >= 11070
CUDA_EXPORT CUresult cuGraphAddBatchMemOpNode(NODE_ARGUMENTS, const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return add(NODE, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, params ? params->ctx : nullptr,
             [&](Context*, NodeWork& work) { return make_operations_work(params, work); });
}
#endif

#if CUDA_VERSION >= 12000
CUDA_EXPORT CUresult cuGraphAddKernelNode_v2(NODE_ARGUMENTS, const CUDA_KERNEL_NODE_PARAMS* params) {
  return add(NODE, CU_GRAPH_NODE_TYPE_KERNEL, params && !params->func ? params->ctx : nullptr,
             [&](Context* context, NodeWork& work) { return make_kernel_work(params, context, work); });
}
CUDA_EXPORT CUresult cuGraphAddKernelNode(NODE_ARGUMENTS, const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_KERNEL_NODE_PARAMS made = newest(*params);
  return cuGraphAddKernelNode_v2(NODE, &made);
}
#else
CUDA_EXPORT CUresult cuGraphAddKernelNode(NODE_ARGUMENTS, const CUDA_KERNEL_NODE_PARAMS* params) {
  return add(NODE, CU_GRAPH_NODE_TYPE_KERNEL, nullptr,
             [&](Context* context, NodeWork& work) { return make_kernel_work(params, context, work); });
}
#endif

// --- Getting and setting parameters ---

CUDA_EXPORT CUresult cuGraphKernelNodeGetParams(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return get_kernel_v1(handle, params);
}
#if CUDA_VERSION >= 12000
CUDA_EXPORT CUresult cuGraphKernelNodeSetParams(CUgraphNode handle,
                                                const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_KERNEL_NODE_PARAMS made = newest(*params);
  return set_kernel(handle, &made);
}
CUDA_EXPORT CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS* params) {
  return on_node_of(handle, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphNode& node) -> CUresult {
    if (!params) return CUDA_ERROR_INVALID_VALUE;
    get_kernel(node, params);
    params->kern = nullptr;
    if (cuda::kind_of(cuda::handle_bits(params->func)) == Kind::kernel) {
      params->kern = reinterpret_cast<CUkernel>(std::exchange(params->func, nullptr));
    } else if (const Function* const function = find_function(params->func)) {
      // The runtime (cudart) uses it to find the program's name of the kernel.
      params->kern = cuda::handle_from_bits<CUkernel>(function->kernel);
    }
    params->ctx = cuda::handle_from_bits<CUcontext>(node.context);
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode handle,
                                                   const CUDA_KERNEL_NODE_PARAMS* params) {
  return set_kernel(handle, params);
}
#else
CUDA_EXPORT CUresult cuGraphKernelNodeSetParams(CUgraphNode handle, const CUDA_KERNEL_NODE_PARAMS* params) {
  return set_kernel(handle, params);
}
#endif

CUDA_EXPORT CUresult cuGraphMemcpyNodeGetParams(CUgraphNode handle, CUDA_MEMCPY3D* params) {
  return get<CopyWork>(handle, CU_GRAPH_NODE_TYPE_MEMCPY, params,
                       [](const CopyWork& work) { return work.params; });
}
CUDA_EXPORT CUresult cuGraphMemcpyNodeSetParams(CUgraphNode handle, const CUDA_MEMCPY3D* params) {
  return set(handle, CU_GRAPH_NODE_TYPE_MEMCPY,
             [&](Context* context, NodeWork& work) { return make_copy_work(params, context, work); });
}
CUDA_EXPORT CUresult cuGraphMemsetNodeGetParams(CUgraphNode handle, CUDA_MEMSET_NODE_PARAMS* params) {
  return get<FillWork>(handle, CU_GRAPH_NODE_TYPE_MEMSET, params,
                       [](const FillWork& work) { return work.params; });
}
CUDA_EXPORT CUresult cuGraphMemsetNodeSetParams(CUgraphNode handle, const CUDA_MEMSET_NODE_PARAMS* params) {
  return set(handle, CU_GRAPH_NODE_TYPE_MEMSET,
             [&](Context* context, NodeWork& work) { return make_fill_work(params, context, work); });
}
CUDA_EXPORT CUresult cuGraphHostNodeGetParams(CUgraphNode handle, CUDA_HOST_NODE_PARAMS* params) {
  return get<HostWork>(handle, CU_GRAPH_NODE_TYPE_HOST, params,
                       [](const HostWork& work) { return work.params; });
}
CUDA_EXPORT CUresult cuGraphHostNodeSetParams(CUgraphNode handle, const CUDA_HOST_NODE_PARAMS* params) {
  return set(handle, CU_GRAPH_NODE_TYPE_HOST,
             [&](Context*, NodeWork& work) { return make_host_work(params, work); });
}
CUDA_EXPORT CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode handle, CUgraph* graph) {
  return get<ChildWork>(handle, CU_GRAPH_NODE_TYPE_GRAPH, graph,
                        [](const ChildWork& work) { return graph_handle(*work.graph); });
}
CUDA_EXPORT CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode handle, CUevent* event) {
  return get<EventWork>(handle, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event, event_of);
}
CUDA_EXPORT CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode handle, CUevent event) {
  return set(handle, CU_GRAPH_NODE_TYPE_EVENT_RECORD,
             [&](Context*, NodeWork& work) { return make_event_work(event, work); });
}
CUDA_EXPORT CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode handle, CUevent* event) {
  return get<EventWork>(handle, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event, event_of);
}
CUDA_EXPORT CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode handle, CUevent event) {
  return set(handle, CU_GRAPH_NODE_TYPE_WAIT_EVENT,
             [&](Context*, NodeWork& work) { return make_event_work(event, work); });
}
#if CUDA_VERSION >= 11070
CUDA_EXPORT CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode handle,
                                                    CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return on_node_of(handle, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, [&](GraphNode& node) -> CUresult {
    if (!params) return CUDA_ERROR_INVALID_VALUE;
    auto& work = std::get<OperationsWork>(node.work);
    *params = {cuda::handle_from_bits<CUcontext>(node.context), static_cast<unsigned>(work.operations.size()),
               work.operations.data(), work.flags};
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode handle,
                                                    const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return set(handle, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
             [&](Context*, NodeWork& work) { return make_operations_work(params, work); });
}
#endif

// --- Kernel attributes ---

CUDA_EXPORT CUresult cuGraphKernelNodeSetAttribute(CUgraphNode handle, CUkernelNodeAttrID id,
                                                   const CUkernelNodeAttrValue* value) {
  return on_node_of(handle, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphNode& node) -> CUresult {
    if (!value || !cuda::is_launch_attribute(id)) return CUDA_ERROR_INVALID_VALUE;
    CUlaunchAttribute made{};
    made.id = id;
    made.value = *value;
    if (cuda::is_launch_only_attribute(made)) return CUDA_ERROR_INVALID_VALUE;
    auto& kernel = std::get<KernelWork>(node.work);
    auto attributes = kernel.attributes();
    std::erase_if(attributes, [&](const CUlaunchAttribute& known) { return known.id == id; });
    if (id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) kernel.launch.flags &= ~wire::kLaunchCooperative;
    attributes.push_back(made);
    if (attributes.size() > wire::kMaxLaunchAttributes) return CUDA_ERROR_INVALID_VALUE;
    kernel.set_attributes(attributes);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuGraphKernelNodeGetAttribute(CUgraphNode handle, CUkernelNodeAttrID id,
                                                   CUkernelNodeAttrValue* value) {
  return on_node_of(handle, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphNode& node) -> CUresult {
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    const auto& kernel = std::get<KernelWork>(node.work);
    *value = {};
    if (id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
      value->cooperative = (kernel.launch.flags & wire::kLaunchCooperative) != 0;
    for (const CUlaunchAttribute& known : kernel.attributes()) {
      if (known.id == id) *value = known.value;
    }
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from) {
  return on_node_of(from, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphNode& source) -> CUresult {
    GraphNode* const target = find_node(to);
    if (!target || target->type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
    const auto& kernel = std::get<KernelWork>(source.work);
    std::get<KernelWork>(target->work).set_attributes(kernel.attributes());
    std::get<KernelWork>(target->work).launch.flags = kernel.launch.flags;
    return CUDA_SUCCESS;
  });
}
