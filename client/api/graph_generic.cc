// The generic node functions of CUDA 12, which dispatch to the kind of node (graph_node_kinds.h), and
// cuGraphDebugDotPrint.
#include <fstream>

#include "client/api/graph_node_calls.h"
#include "protocol/calls/graph_dot.h"
#include "protocol/driver/exports.h"

using namespace gpupool;
using namespace gpupool::client;

#if CUDA_VERSION >= 12020
namespace {

// CUgraphNodeParams has the newest structs of each type; the functions take older ones.
CUDA_KERNEL_NODE_PARAMS kernel_of(const CUgraphNodeParams& params) {
  CUDA_KERNEL_NODE_PARAMS made = newest(params.kernel);
  made.kern = params.kernel.kern;
  made.ctx = params.kernel.ctx;
  return made;
}
CUDA_MEMSET_NODE_PARAMS fill_of(const CUgraphNodeParams& params) {
  const auto& fill = params.memset;
  return {fill.dst, fill.pitch, fill.value, fill.elementSize, fill.width, fill.height};
}
CUDA_HOST_NODE_PARAMS host_of(const CUgraphNodeParams& params) {
  return {params.host.fn, params.host.userData};
}
CUDA_BATCH_MEM_OP_NODE_PARAMS operations_of(const CUgraphNodeParams& params) {
  return {params.memOp.ctx, params.memOp.count, params.memOp.paramArray, params.memOp.flags};
}

// Calls `body` with the kind of the parameters' type, and with the parameters that the kind's own functions
// have.
template <class Body>
CUresult with_kind(CUgraphNodeParams& params, Body&& body) {
  switch (params.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      const CUDA_KERNEL_NODE_PARAMS kernel = kernel_of(params);
      return body(node_kinds::kernel(), &kernel);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY: {
      const CUDA_MEMCPY3D& copy = params.memcpy.copyParams;
      return body(node_kinds::copy(), &copy, params.memcpy.copyCtx);
    }
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS fill = fill_of(params);
      return body(node_kinds::fill(), &fill, params.memset.ctx);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      const CUDA_HOST_NODE_PARAMS host = host_of(params);
      return body(node_kinds::host_function(), &host);
    }
    case CU_GRAPH_NODE_TYPE_GRAPH: return body(node_kinds::child_graph(), params.graph.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY: return body(node_kinds::empty());
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return body(node_kinds::event_wait(), params.eventWait.event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return body(node_kinds::event_record(), params.eventRecord.event);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
      CUDA_MEM_ALLOC_NODE_PARAMS alloc{};
      alloc.poolProps = params.alloc.poolProps;
      alloc.bytesize = params.alloc.bytesize;
      const CUresult result = body(node_kinds::allocation(), &alloc);
      if (result == CUDA_SUCCESS) params.alloc.dptr = alloc.dptr;
      return result;
    }
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return body(node_kinds::release(), params.free.dptr);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
      const CUDA_BATCH_MEM_OP_NODE_PARAMS operations = operations_of(params);
      return body(node_kinds::memory_operations(), &operations);
    }
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // namespace

CUDA_EXPORT CUresult cuGraphAddNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                    size_t count, CUgraphNodeParams* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
#if CUDA_VERSION >= 12030
  if (params->type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
    return add_conditional_node(node, graph, dependencies, count, params->conditional);
#endif
#if CUDA_VERSION >= 12090
  if (params->type == CU_GRAPH_NODE_TYPE_GRAPH &&
      params->graph.ownership != CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE)
    return CUDA_ERROR_NOT_SUPPORTED;
#endif
  return with_kind(*params, [&]<class NodeKind>(NodeKind, auto... own) -> CUresult {
    return add_node<NodeKind>(node, graph, dependencies, count, own...);
  });
}

CUDA_EXPORT CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  return with_kind(*params, [&]<class NodeKind>(NodeKind, [[maybe_unused]] auto... own) -> CUresult {
    if constexpr (NodeKind::fixed || NodeKind::type == CU_GRAPH_NODE_TYPE_GRAPH)
      return CUDA_ERROR_NOT_SUPPORTED;
    else
      return set_params<NodeKind>(node, own...);
  });
}

CUDA_EXPORT CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  return with_kind(*params, [&]<class NodeKind>(NodeKind, [[maybe_unused]] auto... own) -> CUresult {
    if constexpr (NodeKind::fixed)
      return CUDA_ERROR_NOT_SUPPORTED;
    else
      return set_params_in_exec<NodeKind>(exec, node, own...);
  });
}
#endif

#if CUDA_VERSION >= 12030
CUDA_EXPORT CUresult cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                       const CUgraphEdgeData* edges, size_t count,
                                       CUgraphNodeParams* params) {
  if (!edges) return cuGraphAddNode(node, graph, dependencies, count, params);
  if (!params || (count != 0 && !dependencies)) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUgraphNode> from_nodes;  // `node` may point into `dependencies`
  std::vector<cuda::EdgeData> data;
  const CUresult checked = on_graph(graph, [&](Graph& own) -> CUresult {
    for (size_t i = 0; i < count; ++i) {
      const GraphNode* const from = find_node(dependencies[i]);
      const auto edge =
          from && from->graph == &own ? cuda::read_edge(edges, i, from->type, params->type) : std::nullopt;
      if (!edge) return CUDA_ERROR_INVALID_VALUE;
      data.push_back(*edge);
      from_nodes.push_back(dependencies[i]);
    }
    return CUDA_SUCCESS;
  });
  if (checked != CUDA_SUCCESS) return checked;
  if (const CUresult added = cuGraphAddNode(node, graph, dependencies, count, params); added != CUDA_SUCCESS)
    return added;
  return on_node(*node, [&](GraphNode& made) -> CUresult {
    for (size_t i = 0; i < count; ++i) {
      // Unless another thread has destroyed it.
      if (const GraphNode* const from = find_node(from_nodes[i])) made.edges.set(*from, data[i]);
    }
    return CUDA_SUCCESS;
  });
}
#endif

namespace {

void print(std::ofstream& out, const Graph& graph, unsigned flags) {
  for (const auto& node : graph.nodes) {
    out << "  n" << node->handle << " [label=\"" << cuda::dot_name(node->type);
    if (const auto* const kernel = std::get_if<KernelWork>(&node->work)) {
      const Function* const function =
          find_function(cuda::handle_from_bits<CUfunction>(kernel->launch.function));
      if (function) out << "\\n" << function->name;
      const wire::Launch& launch = kernel->launch;
      cuda::print_launch(out, flags, launch.grid, launch.block, launch.shared_bytes);
    }
    out << "\"];\n";
    for (const GraphNode* const dependent : node->dependents)
      out << "  n" << node->handle << " -> n" << dependent->handle << ";\n";
    if (const auto* const child = std::get_if<ChildWork>(&node->work)) print(out, *child->graph, flags);
    if (const auto* const conditional = std::get_if<ConditionalWork>(&node->work)) {
      for (const auto& body : conditional->bodies) print(out, *body, flags);
    }
  }
}

}  // namespace

CUDA_EXPORT CUresult cuGraphDebugDotPrint(CUgraph handle, const char* path, unsigned int flags) {
  return on_graph(handle, [&](Graph& graph) -> CUresult {
    if (!path) return CUDA_ERROR_INVALID_VALUE;
    std::ofstream out(path);
    out << "digraph {\n";
    print(out, graph, flags);
    out << "}\n";
    out.flush();
    return out ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
  });
}
