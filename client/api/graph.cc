// Graphs: creation, structure and cloning. Nodes are in graph_nodes.cc, executable graphs in graph_exec.cc.
#include "client/graphs/graph.h"

#include <algorithm>

#include "client/api/graph.h"
#include "protocol/driver/exports.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

// Returns a list as CUDA does: without a buffer, only the count; a longer buffer is filled with zeros.
// NVIDIA's driver refuses a buffer without room for an entry.
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

using Edge = std::pair<GraphNode*, GraphNode*>;

std::vector<Edge> edges_before(GraphNode& node) {
  std::vector<Edge> edges;
  for (GraphNode* const dependency : node.dependencies) edges.emplace_back(dependency, &node);
  return edges;
}

std::vector<Edge> edges_behind(GraphNode& node) {
  std::vector<Edge> edges;
  for (GraphNode* const dependent : node.dependents) edges.emplace_back(&node, dependent);
  return edges;
}

// The same for edges. Either `from` or `to` may be null; if both are, only the count is returned.
CUresult give_edges(const std::vector<Edge>& edges, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data,
                    size_t* count) {
  const bool counts = !from && !to;
  if (!count || (counts && data) || (!counts && *count == 0)) return CUDA_ERROR_INVALID_VALUE;
  if (counts) {
    *count = edges.size();
    return CUDA_SUCCESS;
  }
  const auto data_of = [](const Edge& edge) { return edge.second->edges.of(*edge.first); };
  const bool full = std::all_of(edges.begin(), edges.end(),
                                [&](const Edge& edge) { return data_of(edge) == cuda::kFullDependency; });
  if (!full && !data) return CUDA_ERROR_LOSSY_QUERY;
  for (size_t i = 0; i < *count; ++i) {
    const bool there = i < edges.size();
    if (from) from[i] = there ? node_handle(*edges[i].first) : nullptr;
    if (to) to[i] = there ? node_handle(*edges[i].second) : nullptr;
    if (data && there) data[i] = cuda::to_cuda(data_of(edges[i]));
  }
  *count = std::min(*count, edges.size());
  return CUDA_SUCCESS;
}

CUresult get_edges(CUgraph handle, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data, size_t* count) {
  return on_graph(handle, [&](Graph& graph) -> CUresult {
    if ((from == nullptr) != (to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
    std::vector<Edge> edges;
    for (const auto& node : graph.nodes) {
      for (GraphNode* const dependent : node->dependents) edges.emplace_back(node.get(), dependent);
    }
    return give_edges(edges, from, to, data, count);
  });
}

CUresult get_dependencies(CUgraphNode handle, CUgraphNode* nodes, CUgraphEdgeData* data, size_t* count) {
  return on_node(
      handle, [&](GraphNode& node) { return give_edges(edges_before(node), nodes, nullptr, data, count); });
}

CUresult get_dependents(CUgraphNode handle, CUgraphNode* nodes, CUgraphEdgeData* data, size_t* count) {
  return on_node(
      handle, [&](GraphNode& node) { return give_edges(edges_behind(node), nullptr, nodes, data, count); });
}

template <class Change>
CUresult change_edges(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to,
                      const CUgraphEdgeData* edges, size_t count, Change&& change) {
  return on_graph(handle, [&](Graph& graph) -> CUresult {
    if (count != 0 && (!from || !to)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i) {
      GraphNode* const a = find_node(from[i]);
      GraphNode* const b = find_node(to[i]);
      if (!a || !b || a->graph != &graph || b->graph != &graph) return CUDA_ERROR_INVALID_VALUE;
      const auto edge = cuda::read_edge(edges, i, a->type, b->type);
      if (!edge || !change(*a, *b, *edge)) return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
  });
}

// The edge must also match by its data.
bool disconnect(GraphNode& from, GraphNode& to, cuda::EdgeData edge) {
  return to.edges.of(from) == edge && Graph::disconnect(from, to);
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
  std::shared_ptr<Graph> kept;  // destroyed after the lock is released, because it may free memory
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
    if (graph.has_memory()) return CUDA_ERROR_NOT_SUPPORTED;  // its addresses belong to one graph
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

CUDA_EXPORT CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode* nodes, size_t* count) {
  return get_dependencies(node, nodes, nullptr, count);
}
CUDA_EXPORT CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode* nodes, size_t* count) {
  return get_dependents(node, nodes, nullptr, count);
}
CUDA_EXPORT CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  return get_edges(graph, from, to, nullptr, count);
}
CUDA_EXPORT CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                            size_t count) {
  return change_edges(graph, from, to, nullptr, count, Graph::connect);
}
CUDA_EXPORT CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                               size_t count) {
  return change_edges(graph, from, to, nullptr, count, disconnect);
}

#if CUDA_VERSION >= 12030
CUDA_EXPORT CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode* nodes,
                                                   CUgraphEdgeData* edges, size_t* count) {
  return get_dependencies(node, nodes, edges, count);
}
CUDA_EXPORT CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode* nodes,
                                                     CUgraphEdgeData* edges, size_t* count) {
  return get_dependents(node, nodes, edges, count);
}
CUDA_EXPORT CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode* from, CUgraphNode* to,
                                        CUgraphEdgeData* edges, size_t* count) {
  return get_edges(graph, from, to, edges, count);
}
CUDA_EXPORT CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                               const CUgraphEdgeData* edges, size_t count) {
  return change_edges(graph, from, to, edges, count, Graph::connect);
}
CUDA_EXPORT CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode* from,
                                                  const CUgraphNode* to, const CUgraphEdgeData* edges,
                                                  size_t count) {
  return change_edges(graph, from, to, edges, count, disconnect);
}
#endif

CUDA_EXPORT CUresult cuGraphRetainUserObject(CUgraph handle, CUuserObject object, unsigned int count,
                                             unsigned int flags) {
  return on_graph(handle, [&](Graph& graph) -> CUresult {
    if (flags > CU_GRAPH_USER_OBJECT_MOVE) return CUDA_ERROR_INVALID_VALUE;
    return graph.user_objects.add(object, count, flags == CU_GRAPH_USER_OBJECT_MOVE);
  });
}

CUDA_EXPORT CUresult cuGraphReleaseUserObject(CUgraph handle, CUuserObject object, unsigned int count) {
  return on_graph(handle, [&](Graph& graph) { return graph.user_objects.remove(object, count); });
}
