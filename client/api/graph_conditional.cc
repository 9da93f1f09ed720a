// Conditional handles and nodes, kept here like the rest of a graph (client/graphs/graph.h). The handle that
// a program passes to its kernels is replaced by the device's when the graph is instantiated
// (server/worker/graphs/graphs.h).
#include "client/api/graph_node_calls.h"
#include "protocol/calls/conditional_check.h"
#include "protocol/driver/exports.h"
#include "protocol/wire/graphs.h"

using namespace gpupool;
using namespace gpupool::client;

#if CUDA_VERSION >= 12030
CUDA_EXPORT CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle* handle, CUgraph graph_handle,
                                                    CUcontext given, unsigned int initial,
                                                    unsigned int flags) {
  return on_graph(graph_handle, [&](Graph& graph) -> CUresult {
    if (!handle || (flags & ~unsigned{CU_GRAPH_COND_ASSIGN_DEFAULT}) != 0) return CUDA_ERROR_INVALID_VALUE;
    Context* context = nullptr;
    if (const CUresult result = context_for(given, &context); result != CUDA_SUCCESS) return result;
    const uint64_t made = sessions().front()->mint(Kind::graph_condition, std::make_unique<Object>());
    if (made == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    graph.conditions.push_back({made, context->handle, initial, (flags & CU_GRAPH_COND_ASSIGN_DEFAULT) != 0});
    *handle = made;
    return CUDA_SUCCESS;
  });
}

CUresult gpupool::client::make_conditional_work(const CUDA_CONDITIONAL_NODE_PARAMS& params,
                                                ConditionalWork& work) {
  if (!handles().find(Kind::graph_condition, params.handle) ||
      !cuda::may_have_bodies(static_cast<unsigned>(params.type), params.size))
    return CUDA_ERROR_INVALID_VALUE;
  if (params.size > wire::kMaxGraphBodies) return CUDA_ERROR_NOT_SUPPORTED;
  work.condition = params.handle;
  work.type = static_cast<uint32_t>(params.type);
  for (unsigned i = 0; i < params.size; ++i) {
    work.bodies.push_back(std::make_shared<Graph>());
    if (publish(work.bodies.back()) == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    work.body_handles.push_back(graph_handle(*work.bodies.back()));
  }
  return CUDA_SUCCESS;
}

CUresult gpupool::client::add_conditional_node(CUgraphNode* node, CUgraph graph,
                                               const CUgraphNode* dependencies, size_t count,
                                               CUDA_CONDITIONAL_NODE_PARAMS& params) {
  return add_made(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_CONDITIONAL, params.ctx,
                  [&](const NodePlace&, NodeWork& work) {
                    ConditionalWork made;
                    const CUresult result = make_conditional_work(params, made);
                    params.phGraph_out = made.body_handles.data();  // the array lives in the node
                    work = std::move(made);
                    return result;
                  });
}
#endif
