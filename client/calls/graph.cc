// Graphs: creation, structure and cloning. Nodes are in graph_nodes.cc, executable graphs in graph_exec.cc.
#include "client/graph.h"

#include <algorithm>

#include "client/calls/graph.h"
#include "protocol/cuda/exports.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

// CUDA's way to hand out a list: without a buffer the count is asked for; a longer buffer is filled with zeros. NVIDIA's driver refuses a
// buffer without room for an entry.
CUresult give_nodes(const std::vector<GraphNode*>& nodes, CUgraphNode* out, size_t* count) {
  if (!count || (out && *count == 0)) return CUDA_ERROR_INVALID_VALUE;
  if (out) {
    for (size_t i = 0; i < *count; ++i) out[i] = i < nodes.size() ? node_handle(*nodes[i]) : nullptr;
    *count = std::min(*count, nodes.size());
  } else {
    *count = nodes.size();
  }
  return CUDA_SUCCESS;
}

CUresult give_edges(const Graph& graph, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  std::vector<std::pair<GraphNode*, GraphNode*>> edges;
  for (const auto& node : graph.nodes) {
    for (GraphNode* const dependent : node->dependents) edges.emplace_back(node.get(), dependent);
  }
  if (!count || (from == nullptr) != (to == nullptr) || (from && *count == 0)) return CUDA_ERROR_INVALID_VALUE;
  if (!from) {
    *count = edges.size();
    return CUDA_SUCCESS;
  }
  for (size_t i = 0; i < *count; ++i) {
    from[i] = i < edges.size() ? node_handle(*edges[i].first) : nullptr;
    to[i] = i < edges.size() ? node_handle(*edges[i].second) : nullptr;
  }
  *count = std::min(*count, edges.size());
  return CUDA_SUCCESS;
}

CUresult change_edges(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to, size_t count, bool (*change)(GraphNode&, GraphNode&)) {
  return on_graph(handle, [&](Graph& graph) -> CUresult {
    if (count != 0 && (!from || !to)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i) {
      GraphNode* const a = find_node(from[i]);
      GraphNode* const b = find_node(to[i]);
      if (!a || !b || a->graph != &graph || b->graph != &graph || !change(*a, *b)) return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
  });
}

}  // namespace

CUDA_EXPORT CUresult cuGraphCreate(CUgraph* handle, unsigned int flags) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!handle || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard lock(graph_mutex());
    const auto graph = std::make_shared<Graph>();
    if (publish(graph) == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = graph_handle(*graph);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuGraphDestroy(CUgraph handle) {
  std::shared_ptr<Graph> kept;  // its end comes without the lock: it may free memory
  return on_graph(handle, [&](Graph& graph) -> CUresult {
    kept = share_graph(handle);
    while (!graph.nodes.empty()) graph.remove(*graph.nodes.back());
    handles().retire(graph.handle);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuGraphDestroyNode(CUgraphNode handle) {
  return on_node(handle, [](GraphNode& node) -> CUresult {
    node.graph->remove(node);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuGraphClone(CUgraph* clone, CUgraph handle) {
  return on_graph(handle, [&](Graph& graph) -> CUresult {
    if (!clone) return CUDA_ERROR_INVALID_VALUE;
    if (graph.has_memory()) return CUDA_ERROR_NOT_SUPPORTED;  // its addresses are one graph's
    if (graph.has_conditions()) return CUDA_ERROR_NOT_SUPPORTED;
    const auto copy = graph.clone();
    if (!copy || publish(copy) == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    *clone = graph_handle(*copy);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuGraphNodeFindInClone(CUgraphNode* found, CUgraphNode original, CUgraph clone) {
  return on_graph(clone, [&](Graph& graph) -> CUresult {
    if (!found || !original) return CUDA_ERROR_INVALID_VALUE;
    for (const auto& node : graph.nodes) {
      if (node->original != cuda::handle_bits(original)) continue;
      *found = node_handle(*node);
      return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
  });
}

CUDA_EXPORT CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  return on_graph(handle, [&](Graph& graph) {
    std::vector<GraphNode*> all;
    for (const auto& node : graph.nodes) all.push_back(node.get());
    return give_nodes(all, nodes, count);
  });
}

CUDA_EXPORT CUresult cuGraphGetRootNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  return on_graph(handle, [&](Graph& graph) {
    std::vector<GraphNode*> roots;
    for (const auto& node : graph.nodes) {
      if (node->dependencies.empty()) roots.push_back(node.get());
    }
    return give_nodes(roots, nodes, count);
  });
}

CUDA_EXPORT CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* type) {
  return on_node(handle, [&](GraphNode& node) -> CUresult {
    if (!type) return CUDA_ERROR_INVALID_VALUE;
    *type = node.type;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuGraphNodeGetDependencies(CUgraphNode handle, CUgraphNode* nodes, size_t* count) {
  return on_node(handle, [&](GraphNode& node) { return give_nodes(node.dependencies, nodes, count); });
}
CUDA_EXPORT CUresult cuGraphNodeGetDependentNodes(CUgraphNode handle, CUgraphNode* nodes, size_t* count) {
  return on_node(handle, [&](GraphNode& node) { return give_nodes(node.dependents, nodes, count); });
}
CUDA_EXPORT CUresult cuGraphGetEdges(CUgraph handle, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  return on_graph(handle, [&](Graph& graph) { return give_edges(graph, from, to, count); });
}
CUDA_EXPORT CUresult cuGraphAddDependencies(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  return change_edges(handle, from, to, count, Graph::connect);
}
CUDA_EXPORT CUresult cuGraphRemoveDependencies(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  return change_edges(handle, from, to, count, Graph::disconnect);
}

#if CUDA_VERSION >= 12030
namespace {

// Edges that say more than "before" are not forwarded, so all that there are are plain.
CUresult plain(CUresult result, const void* wanted, CUgraphEdgeData* edges, const size_t* count) {
  if (result == CUDA_SUCCESS && wanted && edges) std::fill_n(edges, *count, CUgraphEdgeData{});
  return result;
}

}  // namespace

CUDA_EXPORT CUresult cuGraphNodeGetDependencies_v2(CUgraphNode handle, CUgraphNode* nodes, CUgraphEdgeData* edges, size_t* count) {
  return plain(cuGraphNodeGetDependencies(handle, nodes, count), nodes, edges, count);
}
CUDA_EXPORT CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode handle, CUgraphNode* nodes, CUgraphEdgeData* edges, size_t* count) {
  return plain(cuGraphNodeGetDependentNodes(handle, nodes, count), nodes, edges, count);
}
CUDA_EXPORT CUresult cuGraphGetEdges_v2(CUgraph handle, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* edges, size_t* count) {
  return plain(cuGraphGetEdges(handle, from, to, count), from, edges, count);
}
CUDA_EXPORT CUresult cuGraphAddDependencies_v2(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to, const CUgraphEdgeData* edges,
                                               size_t count) {
  if (const CUresult checked = check_edges(handle, edges, count); checked != CUDA_SUCCESS) return checked;
  return cuGraphAddDependencies(handle, from, to, count);
}
CUDA_EXPORT CUresult cuGraphRemoveDependencies_v2(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to,
                                                  const CUgraphEdgeData*, size_t count) {
  return cuGraphRemoveDependencies(handle, from, to, count);
}
#endif

CUDA_EXPORT CUresult cuGraphRetainUserObject(CUgraph handle, CUuserObject object, unsigned int count, unsigned int flags) {
  return on_graph(handle, [&](Graph& graph) -> CUresult {
    if (flags > CU_GRAPH_USER_OBJECT_MOVE) return CUDA_ERROR_INVALID_VALUE;
    return graph.user_objects.add(object, count, flags == CU_GRAPH_USER_OBJECT_MOVE);
  });
}

CUDA_EXPORT CUresult cuGraphReleaseUserObject(CUgraph handle, CUuserObject object, unsigned int count) {
  return on_graph(handle, [&](Graph& graph) { return graph.user_objects.remove(object, count); });
}
