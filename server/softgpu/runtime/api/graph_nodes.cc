// Nodes of graphs: adding them, getting and setting their parameters.
#include <algorithm>

#include "server/softgpu/runtime/api/copy.h"
#include "server/softgpu/runtime/api/graph.h"
#include "server/softgpu/runtime/api/launch.h"
#include "server/softgpu/runtime/module.h"

using namespace gpupool;
using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

template <class Body>
CUresult call_on_node(CUgraphNode handle, CUgraphNodeType type, const Body& body) noexcept {
  return call_on_graph<GraphNode>(
      handle, [&](GraphNode& node) { return node.type == type ? body(node) : CUDA_ERROR_INVALID_VALUE; });
}

CUresult set_copy(GraphNode& node, const CUDA_MEMCPY3D* copy) {
  const CUresult result = make_copy_op(copy, &node.prototype);
  if (result == CUDA_SUCCESS) node.copy = *copy;
  return result;
}

CUresult set_fill(GraphNode& node, const CUDA_MEMSET_NODE_PARAMS* fill) {
  const CUresult result = make_fill_op(fill, &node.prototype);
  if (result == CUDA_SUCCESS) node.fill = *fill;
  return result;
}

CUresult set_batch(GraphNode& node, const CUDA_BATCH_MEM_OP_NODE_PARAMS* batch) {
  const CUresult result = make_batch_op(batch, &node.prototype);
  if (result == CUDA_SUCCESS) node.batch.assign(batch->paramArray, batch->paramArray + batch->count);
  return result;
}

// Setting parameters keeps the node's attributes.
CUresult set_kernel(GraphNode& node, const CUDA_KERNEL_NODE_PARAMS_v1* params, uint64_t handle) {
  Ref<Op> op;
  CUresult result = params == nullptr ? CUDA_ERROR_INVALID_VALUE : make_kernel_op(params, handle, &op);
  if (result == CUDA_SUCCESS) result = copy_kernel_attributes(*node.prototype, &op);
  if (result == CUDA_SUCCESS) node.prototype = op;
  return result;
}

CUresult set_event(GraphNode& node, CUevent event) {
  if (!find<Event>(event)) return CUDA_ERROR_INVALID_HANDLE;
  node.event = handle_value(event);
  return CUDA_SUCCESS;
}

CUresult set_child(GraphNode& node, CUgraph handle) {
  const Ref<Graph> child = find<Graph>(handle);
  if (!child || child.get() == node.graph) return CUDA_ERROR_INVALID_VALUE;
  if (child->has_conditions() || child->has_memory()) return CUDA_ERROR_NOT_SUPPORTED;
  node.child = child->clone();
  node.child->handle = runtime().handles().add(node.child);
  return CUDA_SUCCESS;
}

// Returns the node's current parameters. The addresses stay the same for parameters of the same number and
// total size.
void** lend_parameters(GraphNode& node, const GridRequest& request,
                       const std::vector<KernelParameter>& parameters) {
  const auto same_layout = [&](const auto& returned) {
    return returned->values.size() == request.params.size() &&
           returned->addresses.size() == parameters.size();
  };
  auto found = std::find_if(node.returned_parameters.begin(), node.returned_parameters.end(), same_layout);
  if (found == node.returned_parameters.end()) {
    node.returned_parameters.push_back(std::make_unique<GraphNode::ReturnedParameters>());
    found = node.returned_parameters.end() - 1;
    (*found)->values.resize(request.params.size());
    (*found)->addresses.resize(parameters.size());
  }
  GraphNode::ReturnedParameters& returned = **found;
  std::copy_n(request.params.data(), returned.values.size(), returned.values.begin());
  for (size_t i = 0; i < parameters.size(); ++i)
    returned.addresses[i] = returned.values.data() + parameters[i].offset;
  return returned.addresses.data();
}

template <class Params>
void get_kernel(GraphNode& node, Params* params) {
  const auto& op = static_cast<const GridOp&>(*node.prototype);
  const GridRequest& request = op.request();
  params->func = make_handle<CUfunction>(op.function().handle);
  params->gridDimX = request.grid_dim[0];
  params->gridDimY = request.grid_dim[1];
  params->gridDimZ = request.grid_dim[2];
  params->blockDimX = request.block_dim[0];
  params->blockDimY = request.block_dim[1];
  params->blockDimZ = request.block_dim[2];
  params->sharedMemBytes = request.dynamic_shared_bytes;
  params->kernelParams = lend_parameters(node, request, op.function().kernel().parameters);
  params->extra = nullptr;
}

}  // namespace

// --- Adding nodes ---

CUDA_EXPORT CUresult cuGraphAddKernelNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                          size_t count, const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return add_node(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphNode& made) {
    return make_kernel_op(params, handle_value(params->func), &made.prototype);
  });
}
CUDA_EXPORT CUresult cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                          size_t count, const CUDA_MEMCPY3D* copy, CUcontext) {
  return add_node(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_MEMCPY,
                  [&](GraphNode& made) { return set_copy(made, copy); });
}
CUDA_EXPORT CUresult cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                          size_t count, const CUDA_MEMSET_NODE_PARAMS* fill, CUcontext) {
  return add_node(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_MEMSET,
                  [&](GraphNode& made) { return set_fill(made, fill); });
}
CUDA_EXPORT CUresult cuGraphAddHostNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                        size_t count, const CUDA_HOST_NODE_PARAMS* host) {
  return add_node(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_HOST,
                  [&](GraphNode& made) { return make_host_op(host, &made.prototype); });
}
CUDA_EXPORT CUresult cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                         size_t count) {
  return add_node(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_EMPTY,
                  [](GraphNode&) { return CUDA_SUCCESS; });
}
CUDA_EXPORT CUresult cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph graph,
                                              const CUgraphNode* dependencies, size_t count, CUgraph child) {
  return add_node(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_GRAPH,
                  [&](GraphNode& made) { return set_child(made, child); });
}
CUDA_EXPORT CUresult cuGraphAddEventRecordNode(CUgraphNode* node, CUgraph graph,
                                               const CUgraphNode* dependencies, size_t count, CUevent event) {
  return add_node(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_EVENT_RECORD,
                  [&](GraphNode& made) { return set_event(made, event); });
}
CUDA_EXPORT CUresult cuGraphAddEventWaitNode(CUgraphNode* node, CUgraph graph,
                                             const CUgraphNode* dependencies, size_t count, CUevent event) {
  return add_node(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_WAIT_EVENT,
                  [&](GraphNode& made) { return set_event(made, event); });
}
CUDA_EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                            size_t count, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  return add_node(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_MEM_ALLOC,
                  [&](GraphNode& made) { return set_alloc(made, params, current_context().get()); });
}
CUDA_EXPORT CUresult cuGraphAddMemFreeNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                           size_t count, CUdeviceptr address) {
  return add_node(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_MEM_FREE,
                  [&](GraphNode& made) { return set_free(made, address); });
}

CUDA_EXPORT CUresult cuGraphAddBatchMemOpNode(CUgraphNode* node, CUgraph graph,
                                              const CUgraphNode* dependencies, size_t count,
                                              const CUDA_BATCH_MEM_OP_NODE_PARAMS* batch) {
  return add_node(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
                  [&](GraphNode& made) { return set_batch(made, batch); });
}

// --- Getting and setting parameters ---

CUDA_EXPORT CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode handle,
                                                    CUDA_BATCH_MEM_OP_NODE_PARAMS* batch) {
  return call_on_node(handle, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, [&](GraphNode& node) {
    if (batch == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Ref<Context> context = current_context();
    *batch = {make_handle<CUcontext>(context ? context->handle() : 0),
              static_cast<unsigned>(node.batch.size()), node.batch.data(), 0};
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode handle,
                                                    const CUDA_BATCH_MEM_OP_NODE_PARAMS* batch) {
  return call_on_node(handle, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
                      [&](GraphNode& node) { return set_batch(node, batch); });
}

CUDA_EXPORT CUresult cuGraphKernelNodeGetParams(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return call_on_node(handle, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphNode& node) {
    if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
    get_kernel(node, params);
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuGraphKernelNodeSetParams(CUgraphNode handle,
                                                const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return call_on_node(handle, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphNode& node) {
    return set_kernel(node, params, params != nullptr ? handle_value(params->func) : 0);
  });
}
CUDA_EXPORT CUresult cuGraphMemcpyNodeGetParams(CUgraphNode handle, CUDA_MEMCPY3D* copy) {
  return call_on_node(handle, CU_GRAPH_NODE_TYPE_MEMCPY, [&](GraphNode& node) {
    if (copy == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *copy = node.copy;
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuGraphMemcpyNodeSetParams(CUgraphNode handle, const CUDA_MEMCPY3D* copy) {
  return call_on_node(handle, CU_GRAPH_NODE_TYPE_MEMCPY,
                      [&](GraphNode& node) { return set_copy(node, copy); });
}
CUDA_EXPORT CUresult cuGraphMemsetNodeGetParams(CUgraphNode handle, CUDA_MEMSET_NODE_PARAMS* fill) {
  return call_on_node(handle, CU_GRAPH_NODE_TYPE_MEMSET, [&](GraphNode& node) {
    if (fill == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *fill = node.fill;
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuGraphMemsetNodeSetParams(CUgraphNode handle, const CUDA_MEMSET_NODE_PARAMS* fill) {
  return call_on_node(handle, CU_GRAPH_NODE_TYPE_MEMSET,
                      [&](GraphNode& node) { return set_fill(node, fill); });
}
CUDA_EXPORT CUresult cuGraphHostNodeGetParams(CUgraphNode handle, CUDA_HOST_NODE_PARAMS* host) {
  return call_on_node(handle, CU_GRAPH_NODE_TYPE_HOST, [&](GraphNode& node) {
    if (host == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto& op = static_cast<const HostFunctionOp&>(*node.prototype);
    host->fn = op.function();
    host->userData = op.user();
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuGraphHostNodeSetParams(CUgraphNode handle, const CUDA_HOST_NODE_PARAMS* host) {
  return call_on_node(handle, CU_GRAPH_NODE_TYPE_HOST,
                      [&](GraphNode& node) { return make_host_op(host, &node.prototype); });
}
CUDA_EXPORT CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode handle, CUgraph* graph) {
  return call_on_node(handle, CU_GRAPH_NODE_TYPE_GRAPH, [&](GraphNode& node) {
    if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *graph = make_handle<CUgraph>(node.child->handle);
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode handle, CUevent* event) {
  return call_on_node(handle, CU_GRAPH_NODE_TYPE_EVENT_RECORD, [&](GraphNode& node) {
    if (event == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *event = make_handle<CUevent>(node.event);
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode handle, CUevent event) {
  return call_on_node(handle, CU_GRAPH_NODE_TYPE_EVENT_RECORD,
                      [&](GraphNode& node) { return set_event(node, event); });
}
CUDA_EXPORT CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode handle, CUevent* event) {
  return call_on_node(handle, CU_GRAPH_NODE_TYPE_WAIT_EVENT, [&](GraphNode& node) {
    if (event == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *event = make_handle<CUevent>(node.event);
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode handle, CUevent event) {
  return call_on_node(handle, CU_GRAPH_NODE_TYPE_WAIT_EVENT,
                      [&](GraphNode& node) { return set_event(node, event); });
}

// --- Versions of CUDA 12 ---

#if CUDA_VERSION >= 12000
namespace {

CUDA_KERNEL_NODE_PARAMS_v1 first_form(const CUDA_KERNEL_NODE_PARAMS_v2& params) {
  return {params.func,      params.gridDimX,  params.gridDimY,       params.gridDimZ,     params.blockDimX,
          params.blockDimY, params.blockDimZ, params.sharedMemBytes, params.kernelParams, params.extra};
}
uint64_t kernel_of(const CUDA_KERNEL_NODE_PARAMS_v2& params) {
  return params.func != nullptr ? handle_value(params.func) : handle_value(params.kern);
}

}  // namespace

CUDA_EXPORT CUresult cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph graph,
                                             const CUgraphNode* dependencies, size_t count,
                                             const CUDA_KERNEL_NODE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return add_node(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphNode& made) {
    const CUDA_KERNEL_NODE_PARAMS_v1 first = first_form(*params);
    return make_kernel_op(&first, kernel_of(*params), &made.prototype);
  });
}
CUDA_EXPORT CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS* params) {
  return call_on_node(handle, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphNode& node) {
    if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
    get_kernel(node, params);
    const auto& grid = static_cast<const GridOp&>(*node.prototype);
    params->kern = make_handle<CUkernel>(grid.kernel());
    if (params->kern != nullptr) params->func = nullptr;
    // cudart finds the program's symbol of the kernel by this handle.
    else
      params->kern = make_handle<CUkernel>(grid.function().library_kernel.load(std::memory_order_relaxed));
    params->ctx = make_handle<CUcontext>(grid.function().context().handle());
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode handle,
                                                   const CUDA_KERNEL_NODE_PARAMS* params) {
  return call_on_node(handle, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphNode& node) {
    if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_KERNEL_NODE_PARAMS_v1 first = first_form(*params);
    return set_kernel(node, &first, kernel_of(*params));
  });
}
#endif

// --- Attributes of kernel nodes: cooperative launch and cluster size take effect, the others are hints ---

CUDA_EXPORT CUresult cuGraphKernelNodeSetAttribute(CUgraphNode handle, CUkernelNodeAttrID id,
                                                   const CUkernelNodeAttrValue* value) {
  return call_on_node(handle, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphNode& node) {
    CUlaunchAttribute attribute{};
    attribute.id = id;
    if (value == nullptr || cuda::is_launch_only_attribute(attribute)) return CUDA_ERROR_INVALID_VALUE;
    attribute.value = *value;
    LaunchShape shape{};
    if (const CUresult result = read_launch_attributes(&attribute, 1, &shape); result != CUDA_SUCCESS)
      return result;
    const GridRequest& before = static_cast<const GridOp&>(*node.prototype).request();
    if (shape.cooperative && before.packed_parameters) return CUDA_ERROR_INVALID_VALUE;
    if (id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
      node.prototype = with_cooperation(node.prototype, shape.cooperative);
    if (id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) return CUDA_SUCCESS;
    const auto& grid = static_cast<const GridOp&>(*node.prototype);
    GridRequest request = grid.request();
    const CUresult result = choose_cluster(grid.function(), shape.cluster, &request);
    if (result == CUDA_SUCCESS) {
      node.prototype = make_ref<GridOp>(Ref<Function>::share(const_cast<Function*>(&grid.function())),
                                        std::move(request), grid.kernel());
    }
    return result;
  });
}
CUDA_EXPORT CUresult cuGraphKernelNodeGetAttribute(CUgraphNode handle, CUkernelNodeAttrID id,
                                                   CUkernelNodeAttrValue* value) {
  return call_on_node(handle, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphNode& node) {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *value = CUkernelNodeAttrValue{};
    if (id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
      value->cooperative = static_cast<const GridOp&>(*node.prototype).request().cooperative ? 1 : 0;
    if (id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      const uint32_t* size = static_cast<const GridOp&>(*node.prototype).request().cluster_dim;
      value->clusterDim = {size[0], size[1], size[2]};
    }
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from) {
  return call_on_node(from, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphNode& source) {
    const Ref<GraphNode> target = find_node(to, CU_GRAPH_NODE_TYPE_KERNEL);
    return target ? copy_kernel_attributes(*source.prototype, &target->prototype) : CUDA_ERROR_INVALID_VALUE;
  });
}
