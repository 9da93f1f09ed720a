// Helpers of the graph functions: look-ups under graph_mutex(), and the making of nodes' work. Used by
// client/api/graph*.cc and memory.cc. Any thread.
#pragma once
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

// Check a node's parameters, in the newest version of their structs, and convert them to work in `context`
// (null: no context is current).
CUresult make_kernel_work(const CUDA_KERNEL_NODE_PARAMS* params, Context* context, NodeWork& work);
CUresult make_copy_work(const CUDA_MEMCPY3D* params, Context* context, NodeWork& work);
CUresult make_fill_work(const CUDA_MEMSET_NODE_PARAMS* params, Context* context, NodeWork& work);
CUresult make_host_work(const CUDA_HOST_NODE_PARAMS* params, NodeWork& work);
CUresult make_event_work(CUevent event, NodeWork& work);
CUresult make_operations_work(const CUDA_BATCH_MEM_OP_NODE_PARAMS* params, NodeWork& work);
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

#if CUDA_VERSION >= 12000
CUDA_KERNEL_NODE_PARAMS newest(const CUDA_KERNEL_NODE_PARAMS_v1& params);
#endif

}  // namespace gpupool::client
