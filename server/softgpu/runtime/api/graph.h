// Helpers of the graph functions. Any thread; call_on_graph() and add_node() take graph_mutex().
#pragma once
#include <vector>

#include "server/softgpu/runtime/api/call.h"
#include "server/softgpu/runtime/graph.h"

namespace gpupool::softgpu::api {

// Calls `body` with the object behind the handle, holding graph_mutex().
template <class T, class Handle, class Body>
CUresult call_on_graph(Handle handle, const Body& body) noexcept {
  return call([&] {
    std::lock_guard guard(graph_mutex());
    const Ref<T> object = find<T>(handle);
    return object ? body(*object) : CUDA_ERROR_INVALID_VALUE;
  });
}

// Returns the node if it has the wanted type, else null.
inline Ref<GraphNode> find_node(CUgraphNode handle, CUgraphNodeType type) {
  Ref<GraphNode> node = find<GraphNode>(handle);
  return node && node->type == type ? node : nullptr;
}

// Adds a node to the graph. `fill` sets it up; if that fails, the node is removed.
template <class Fill>
CUresult add_node(CUgraphNode* out, CUgraph handle, const CUgraphNode* dependencies, size_t count,
                  CUgraphNodeType type, const Fill& fill) {
  return call_on_graph<Graph>(handle, [&](Graph& graph) {
    if (out == nullptr || (count != 0 && dependencies == nullptr)) return CUDA_ERROR_INVALID_VALUE;
    std::vector<GraphNode*> before;
    for (size_t i = 0; i < count; ++i) {
      const Ref<GraphNode> node = find<GraphNode>(dependencies[i]);
      if (!node || node->graph != &graph) return CUDA_ERROR_INVALID_VALUE;
      before.push_back(node.get());
    }
    const Ref<GraphNode> node = graph.add(type, before);
    const CUresult result = node->handle == 0 ? CUDA_ERROR_OUT_OF_MEMORY : fill(*node);
    if (result != CUDA_SUCCESS) {
      graph.remove(*node);
      return result;
    }
    *out = make_handle<CUgraphNode>(node->handle);
    return CUDA_SUCCESS;
  });
}

// Check a node's parameters and make its operation, in the current context.
CUresult make_kernel_op(const CUDA_KERNEL_NODE_PARAMS_v1* kernel, uint64_t handle, Ref<Op>* op);
// Returns a copy of a kernel's operation with the cooperative attribute set or cleared.
Ref<Op> with_cooperation(const Ref<Op>& kernel, bool cooperative);
// Replaces *kernel, a kernel's operation, by a copy with the attributes of `from`: cooperative launch, and
// the cluster size if it differs from that of `from`'s function. CUDA_ERROR_INVALID_CLUSTER_SIZE.
CUresult copy_kernel_attributes(const Op& from, Ref<Op>* kernel);
CUresult make_copy_op(const CUDA_MEMCPY3D* copy, Ref<Op>* op);
CUresult make_fill_op(const CUDA_MEMSET_NODE_PARAMS* fill, Ref<Op>* op);
CUresult make_host_op(const CUDA_HOST_NODE_PARAMS* host, Ref<Op>* op);
#if CUDA_VERSION >= 12030
// Sets up a conditional node and creates the graphs of its bodies.
CUresult set_conditional(GraphNode& node, CUDA_CONDITIONAL_NODE_PARAMS& params);
#endif
// Set up memory nodes (api/graph_memory.cc). set_alloc() allocates the memory.
CUresult set_alloc(GraphNode& node, CUDA_MEM_ALLOC_NODE_PARAMS* params, Context* context);
CUresult set_free(GraphNode& node, CUdeviceptr address);
CUresult make_batch_op(const CUDA_BATCH_MEM_OP_NODE_PARAMS* batch, Ref<Op>* op);

}  // namespace gpupool::softgpu::api
