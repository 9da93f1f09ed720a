// The functions of CUDA 12 that take a node's parameters as CUgraphNodeParams: each calls the function of the
// node's type.
#include "server/softgpu/runtime/api/graph.h"

using namespace gpupool;
using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

#if CUDA_VERSION >= 12020
namespace {

// Parameters as the older structs that those functions take; CUgraphNodeParams has the newest of each type.
struct OlderParams {
  explicit OlderParams(const CUgraphNodeParams& params)
      : kernel{params.kernel.func,      params.kernel.gridDimX,       params.kernel.gridDimY,
               params.kernel.gridDimZ,  params.kernel.blockDimX,      params.kernel.blockDimY,
               params.kernel.blockDimZ, params.kernel.sharedMemBytes, params.kernel.kernelParams,
               params.kernel.extra,     params.kernel.kern,           params.kernel.ctx},
        fill{params.memset.dst,         params.memset.pitch, params.memset.value,
             params.memset.elementSize, params.memset.width, params.memset.height},
        host{params.host.fn, params.host.userData},
        batch{params.memOp.ctx, params.memOp.count, params.memOp.paramArray, params.memOp.flags} {}

  CUDA_KERNEL_NODE_PARAMS kernel;
  CUDA_MEMSET_NODE_PARAMS fill;
  CUDA_HOST_NODE_PARAMS host;
  CUDA_BATCH_MEM_OP_NODE_PARAMS batch;
};

CUresult add_alloc(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                   CUgraphNodeParams& params) {
  CUDA_MEM_ALLOC_NODE_PARAMS alloc{params.alloc.poolProps, params.alloc.accessDescs,
                                   params.alloc.accessDescCount, params.alloc.bytesize, 0};
  const CUresult result = cuGraphAddMemAllocNode(node, graph, dependencies, count, &alloc);
  if (result == CUDA_SUCCESS) params.alloc.dptr = alloc.dptr;
  return result;
}

}  // namespace

CUDA_EXPORT CUresult cuGraphAddNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                    size_t count, CUgraphNodeParams* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const OlderParams older(*params);  // only the member of params->type is valid
  switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return cuGraphAddKernelNode_v2(node, graph, dependencies, count, &older.kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return cuGraphAddMemcpyNode(node, graph, dependencies, count, &params->memcpy.copyParams,
                                  params->memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return cuGraphAddMemsetNode(node, graph, dependencies, count, &older.fill, params->memset.ctx);
    case CU_GRAPH_NODE_TYPE_HOST: return cuGraphAddHostNode(node, graph, dependencies, count, &older.host);
    case CU_GRAPH_NODE_TYPE_GRAPH:
#if CUDA_VERSION >= 12090
      if (params->graph.ownership != CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE) return CUDA_ERROR_NOT_SUPPORTED;
#endif
      return cuGraphAddChildGraphNode(node, graph, dependencies, count, params->graph.graph);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return cuGraphAddEventWaitNode(node, graph, dependencies, count, params->eventWait.event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return cuGraphAddEventRecordNode(node, graph, dependencies, count, params->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_EMPTY: return cuGraphAddEmptyNode(node, graph, dependencies, count);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return add_alloc(node, graph, dependencies, count, *params);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return cuGraphAddMemFreeNode(node, graph, dependencies, count, params->free.dptr);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return cuGraphAddBatchMemOpNode(node, graph, dependencies, count, &older.batch);
#if CUDA_VERSION >= 12030
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return add_node(node, graph, dependencies, count, params->type,
                      [&](GraphNode& made) { return set_conditional(made, params->conditional); });
#endif
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUDA_EXPORT CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const OlderParams older(*params);  // only the member of params->type is valid
  switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return cuGraphKernelNodeSetParams_v2(node, &older.kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY: return cuGraphMemcpyNodeSetParams(node, &params->memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET: return cuGraphMemsetNodeSetParams(node, &older.fill);
    case CU_GRAPH_NODE_TYPE_HOST: return cuGraphHostNodeSetParams(node, &older.host);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return cuGraphEventWaitNodeSetEvent(node, params->eventWait.event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return cuGraphEventRecordNodeSetEvent(node, params->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return cuGraphBatchMemOpNodeSetParams(node, &older.batch);
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUDA_EXPORT CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const OlderParams older(*params);  // only the member of params->type is valid
  switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return cuGraphExecKernelNodeSetParams_v2(exec, node, &older.kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return cuGraphExecMemcpyNodeSetParams(exec, node, &params->memcpy.copyParams, params->memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return cuGraphExecMemsetNodeSetParams(exec, node, &older.fill, params->memset.ctx);
    case CU_GRAPH_NODE_TYPE_HOST: return cuGraphExecHostNodeSetParams(exec, node, &older.host);
    case CU_GRAPH_NODE_TYPE_GRAPH: return cuGraphExecChildGraphNodeSetParams(exec, node, params->graph.graph);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return cuGraphExecEventWaitNodeSetEvent(exec, node, params->eventWait.event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return cuGraphExecEventRecordNodeSetEvent(exec, node, params->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return cuGraphExecBatchMemOpNodeSetParams(exec, node, &older.batch);
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}
#endif

#if CUDA_VERSION >= 12030
CUDA_EXPORT CUresult cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                       const CUgraphEdgeData* edges, size_t count,
                                       CUgraphNodeParams* params) {
  if (params == nullptr || (count != 0 && dependencies == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Ref<GraphNode>> from_nodes;  // `node` may point into `dependencies`
  for (size_t i = 0; i < count; ++i) {
    from_nodes.push_back(find<GraphNode>(dependencies[i]));
    if (!from_nodes.back() || !cuda::read_edge(edges, i, from_nodes.back()->type, params->type))
      return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult added = cuGraphAddNode(node, graph, dependencies, count, params); added != CUDA_SUCCESS)
    return added;
  return call_on_graph<GraphNode>(*node, [&](GraphNode& made) {
    for (size_t i = 0; i < count; ++i)
      made.edges.set(*from_nodes[i], *cuda::read_edge(edges, i, from_nodes[i]->type, made.type));
    return CUDA_SUCCESS;
  });
}
#endif
