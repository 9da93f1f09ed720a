// Graphs: creation, structure and cloning. Nodes are in graph_nodes.cc, launching in graph_exec.cc.
#include "server/softgpu/runtime/api/graph.h"

#include <algorithm>

using namespace gpupool;
using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

// Returns a list of nodes. Without a buffer only the count is returned; unused entries of a buffer are set to
// null. NVIDIA's driver rejects a buffer of length 0.
CUresult return_nodes(const std::vector<GraphNode*>& nodes, CUgraphNode* out, size_t* count) {
  if (count == nullptr || (out != nullptr && *count == 0)) return CUDA_ERROR_INVALID_VALUE;
  if (out != nullptr) {
    for (size_t i = 0; i < *count; ++i) {
      out[i] = i < nodes.size() ? make_handle<CUgraphNode>(nodes[i]->handle) : nullptr;
    }
    *count = std::min(*count, nodes.size());
  } else {
    *count = nodes.size();
  }
  return CUDA_SUCCESS;
}

struct Edge {
  GraphNode* from;
  GraphNode* to;
  cuda::EdgeData data() const { return to->edges.of(*from); }
};

// The same for edges. `to` is null for a node's dependencies, `from` for its dependents, both are null to
// query the count.
CUresult return_edges(const std::vector<Edge>& edges, CUgraphNode* from, CUgraphNode* to,
                      CUgraphEdgeData* data, size_t* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (from == nullptr && to == nullptr) {
    if (data != nullptr) return CUDA_ERROR_INVALID_VALUE;
    *count = edges.size();
    return CUDA_SUCCESS;
  }
  if (*count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (const Edge& edge : edges) {
    if (data == nullptr && edge.data() != cuda::kFullDependency) return CUDA_ERROR_LOSSY_QUERY;
  }
  for (size_t i = 0; i < *count; ++i) {
    const bool there = i < edges.size();
    if (from != nullptr) from[i] = there ? make_handle<CUgraphNode>(edges[i].from->handle) : nullptr;
    if (to != nullptr) to[i] = there ? make_handle<CUgraphNode>(edges[i].to->handle) : nullptr;
    if (data != nullptr && there) data[i] = cuda::to_cuda(edges[i].data());
  }
  *count = std::min(*count, edges.size());
  return CUDA_SUCCESS;
}

CUresult get_dependencies(CUgraphNode handle, CUgraphNode* nodes, CUgraphEdgeData* data, size_t* count) {
  return call_on_graph<GraphNode>(handle, [&](GraphNode& node) {
    std::vector<Edge> edges;
    for (GraphNode* dependency : node.dependencies) edges.push_back({dependency, &node});
    return return_edges(edges, nodes, nullptr, data, count);
  });
}

CUresult get_dependents(CUgraphNode handle, CUgraphNode* nodes, CUgraphEdgeData* data, size_t* count) {
  return call_on_graph<GraphNode>(handle, [&](GraphNode& node) {
    std::vector<Edge> edges;
    for (GraphNode* dependent : node.dependents) edges.push_back({&node, dependent});
    return return_edges(edges, nullptr, nodes, data, count);
  });
}

CUresult get_edges(CUgraph handle, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data, size_t* count) {
  return call_on_graph<Graph>(handle, [&](Graph& graph) {
    if ((from == nullptr) != (to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
    std::vector<Edge> edges;
    for (const Ref<GraphNode>& node : graph.nodes) {
      for (GraphNode* dependent : node->dependents) edges.push_back({node.get(), dependent});
    }
    return return_edges(edges, from, to, data, count);
  });
}

CUresult change_edges(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to,
                      const CUgraphEdgeData* edges, size_t count,
                      bool (*change)(GraphNode&, GraphNode&, cuda::EdgeData)) {
  return call_on_graph<Graph>(handle, [&](Graph& graph) {
    if (count != 0 && (from == nullptr || to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i) {
      const Ref<GraphNode> a = find<GraphNode>(from[i]), b = find<GraphNode>(to[i]);
      if (!a || !b || a->graph != &graph || b->graph != &graph) return CUDA_ERROR_INVALID_VALUE;
      const auto edge = cuda::read_edge(edges, i, a->type, b->type);
      if (!edge || !change(*a, *b, *edge)) return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
  });
}

// Removes an edge only if it has this data.
bool disconnect(GraphNode& from, GraphNode& to, cuda::EdgeData edge) {
  return to.edges.of(from) == edge && Graph::disconnect(from, to);
}

}  // namespace

CUDA_EXPORT CUresult cuGraphCreate(CUgraph* handle, unsigned int flags) {
  return call([&] {
    if (handle == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const Ref<Graph> graph = make_ref<Graph>();
    graph->handle = runtime().handles().add(graph);
    if (graph->handle == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = make_handle<CUgraph>(graph->handle);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuGraphDestroy(CUgraph handle) {
  return call_on_graph<Graph>(handle, [&](Graph& graph) {
    runtime().handles().remove<Graph>(graph.handle);
    graph.clear();
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuGraphDestroyNode(CUgraphNode handle) {
  return call_on_graph<GraphNode>(handle, [&](GraphNode& node) {
    node.graph->remove(node);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuGraphClone(CUgraph* clone, CUgraph handle) {
  return call_on_graph<Graph>(handle, [&](Graph& graph) {
    if (clone == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (graph.has_conditions() || graph.has_memory()) return CUDA_ERROR_NOT_SUPPORTED;
    const Ref<Graph> copy = graph.clone();
    copy->handle = runtime().handles().add(copy);
    if (copy->handle == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    *clone = make_handle<CUgraph>(copy->handle);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuGraphNodeFindInClone(CUgraphNode* found, CUgraphNode original, CUgraph clone) {
  return call_on_graph<Graph>(clone, [&](Graph& graph) {
    if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (const Ref<GraphNode>& node : graph.nodes) {
      if (node->original != 0 && node->original == handle_value(original)) {
        *found = make_handle<CUgraphNode>(node->handle);
        return CUDA_SUCCESS;
      }
    }
    return CUDA_ERROR_INVALID_VALUE;
  });
}

CUDA_EXPORT CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  return call_on_graph<Graph>(handle, [&](Graph& graph) {
    std::vector<GraphNode*> all;
    for (const Ref<GraphNode>& node : graph.nodes) all.push_back(node.get());
    return return_nodes(all, nodes, count);
  });
}

CUDA_EXPORT CUresult cuGraphGetRootNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  return call_on_graph<Graph>(handle, [&](Graph& graph) {
    std::vector<GraphNode*> roots;
    for (const Ref<GraphNode>& node : graph.nodes) {
      if (node->dependencies.empty()) roots.push_back(node.get());
    }
    return return_nodes(roots, nodes, count);
  });
}

CUDA_EXPORT CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* type) {
  return call_on_graph<GraphNode>(handle, [&](GraphNode& node) {
    if (type == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *type = node.type;
    return CUDA_SUCCESS;
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
  return call_on_graph<Graph>(handle, [&](Graph& graph) {
    if (flags > CU_GRAPH_USER_OBJECT_MOVE) return CUDA_ERROR_INVALID_VALUE;
    return graph.user_objects.add(object, count, flags == CU_GRAPH_USER_OBJECT_MOVE);
  });
}

CUDA_EXPORT CUresult cuGraphReleaseUserObject(CUgraph handle, CUuserObject object, unsigned int count) {
  return call_on_graph<Graph>(handle, [&](Graph& graph) { return graph.user_objects.remove(object, count); });
}
