// Helpers of the graph functions: look-ups under graph_mutex(), and the making of nodes' work. Used by
// client/api/graph*.cc and memory.cc. Any thread.
#pragma once
#include <functional>

#include "client/graphs/graph.h"

namespace gpupool::client {

// Runs `body` with graph_mutex() held. CUDA_ERROR_INVALID_VALUE: no such graph (node).
template <class Body>
CUresult on_graph(CUgraph handle, Body&& body) noexcept {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    const std::lock_guard lock(graph_mutex());
    Graph* const graph = find_graph(handle);
    return graph ? body(*graph) : CUDA_ERROR_INVALID_VALUE;
  });
}

template <class Body>
CUresult on_node(CUgraphNode handle, Body&& body) noexcept {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    const std::lock_guard lock(graph_mutex());
    GraphNode* const node = find_node(handle);
    return node ? body(*node) : CUDA_ERROR_INVALID_VALUE;
  });
}

// The same for a node of one type.
template <class Body>
CUresult on_node_of(CUgraphNode handle, CUgraphNodeType type, Body&& body) noexcept {
  return on_node(handle,
                 [&](GraphNode& node) { return node.type == type ? body(node) : CUDA_ERROR_INVALID_VALUE; });
}

// Allocates the memory and sets params->dptr.
CUresult make_alloc_work(CUDA_MEM_ALLOC_NODE_PARAMS* params, Context* context, NodeWork& work);
CUresult make_free_work(CUdeviceptr address, NodeWork& work);
#if CUDA_VERSION >= 12030
// client/api/graph_conditional.cc. Creates the body graphs.
CUresult make_conditional_work(const CUDA_CONDITIONAL_NODE_PARAMS& params, ConditionalWork& work);
CUresult add_conditional_node(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                              CUDA_CONDITIONAL_NODE_PARAMS& params);
#endif
// Returns the context that a call names; null: the current one.
CUresult context_for(CUcontext given, Context** context);
// Sets new work for a node of an executable graph, in the context `given` or the current one.
CUresult set_exec_node(CUgraphExec handle, CUgraphNode node, CUgraphNodeType type, CUcontext given,
                       const std::function<CUresult(Context*, NodeWork&)>& make);

}  // namespace gpupool::client
