// Graphs: creation, structure and cloning. Nodes are in graph_nodes.cc, launching in graph_exec.cc.
#include "server/softgpu/runtime/api/graph.h"

#include <algorithm>

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

// CUDA's way to hand out a list: with no buffer the count is asked for; a longer buffer is filled with zeros. NVIDIA's driver refuses a
// buffer without room for an entry.
CUresult give_nodes(const std::vector<GraphNode*>& nodes, CUgraphNode* out, size_t* count) {
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

CUresult give_edges(const Graph& graph, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  std::vector<std::pair<GraphNode*, GraphNode*>> edges;
  for (const Ref<GraphNode>& node : graph.nodes) {
    for (GraphNode* dependent : node->dependents) edges.emplace_back(node.get(), dependent);
  }
  if (count == nullptr || (from == nullptr) != (to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  if (from != nullptr && *count == 0) return CUDA_ERROR_INVALID_VALUE;
  if (from == nullptr) {
    *count = edges.size();
    return CUDA_SUCCESS;
  }
  for (size_t i = 0; i < *count; ++i) {
    const bool there = i < edges.size();
    from[i] = there ? make_handle<CUgraphNode>(edges[i].first->handle) : nullptr;
    to[i] = there ? make_handle<CUgraphNode>(edges[i].second->handle) : nullptr;
  }
  *count = std::min(*count, edges.size());
  return CUDA_SUCCESS;
}

CUresult change_edges(Graph& graph, const CUgraphNode* from, const CUgraphNode* to, size_t count,
                      bool (*change)(GraphNode&, GraphNode&)) {
  if (count != 0 && (from == nullptr || to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    const Ref<GraphNode> a = find<GraphNode>(from[i]), b = find<GraphNode>(to[i]);
    if (!a || !b || a->graph != &graph || b->graph != &graph || !change(*a, *b))
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
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
    return give_nodes(all, nodes, count);
  });
}

CUDA_EXPORT CUresult cuGraphGetRootNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  return call_on_graph<Graph>(handle, [&](Graph& graph) {
    std::vector<GraphNode*> roots;
    for (const Ref<GraphNode>& node : graph.nodes) {
      if (node->dependencies.empty()) roots.push_back(node.get());
    }
    return give_nodes(roots, nodes, count);
  });
}

CUDA_EXPORT CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* type) {
  return call_on_graph<GraphNode>(handle, [&](GraphNode& node) {
    if (type == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *type = node.type;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuGraphNodeGetDependencies(CUgraphNode handle, CUgraphNode* nodes, size_t* count) {
  return call_on_graph<GraphNode>(
      handle, [&](GraphNode& node) { return give_nodes(node.dependencies, nodes, count); });
}
CUDA_EXPORT CUresult cuGraphNodeGetDependentNodes(CUgraphNode handle, CUgraphNode* nodes, size_t* count) {
  return call_on_graph<GraphNode>(handle,
                                  [&](GraphNode& node) { return give_nodes(node.dependents, nodes, count); });
}
CUDA_EXPORT CUresult cuGraphGetEdges(CUgraph handle, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  return call_on_graph<Graph>(handle, [&](Graph& graph) { return give_edges(graph, from, to, count); });
}
CUDA_EXPORT CUresult cuGraphAddDependencies(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to,
                                            size_t count) {
  return call_on_graph<Graph>(
      handle, [&](Graph& graph) { return change_edges(graph, from, to, count, Graph::connect); });
}
CUDA_EXPORT CUresult cuGraphRemoveDependencies(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to,
                                               size_t count) {
  return call_on_graph<Graph>(
      handle, [&](Graph& graph) { return change_edges(graph, from, to, count, Graph::disconnect); });
}

#if CUDA_VERSION >= 12030
CUDA_EXPORT CUresult cuGraphNodeGetDependencies_v2(CUgraphNode handle, CUgraphNode* nodes,
                                                   CUgraphEdgeData* edges, size_t* count) {
  const CUresult result = cuGraphNodeGetDependencies(handle, nodes, count);
  if (result == CUDA_SUCCESS && nodes != nullptr && edges != nullptr)
    std::fill_n(edges, *count, CUgraphEdgeData{});
  return result;
}
CUDA_EXPORT CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode handle, CUgraphNode* nodes,
                                                     CUgraphEdgeData* edges, size_t* count) {
  const CUresult result = cuGraphNodeGetDependentNodes(handle, nodes, count);
  if (result == CUDA_SUCCESS && nodes != nullptr && edges != nullptr)
    std::fill_n(edges, *count, CUgraphEdgeData{});
  return result;
}
CUDA_EXPORT CUresult cuGraphGetEdges_v2(CUgraph handle, CUgraphNode* from, CUgraphNode* to,
                                        CUgraphEdgeData* data, size_t* count) {
  const CUresult result = cuGraphGetEdges(handle, from, to, count);
  if (result == CUDA_SUCCESS && from != nullptr && data != nullptr)
    std::fill_n(data, *count, CUgraphEdgeData{});
  return result;
}
CUDA_EXPORT CUresult cuGraphAddDependencies_v2(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to,
                                               const CUgraphEdgeData*, size_t count) {
  return cuGraphAddDependencies(handle, from, to, count);
}
CUDA_EXPORT CUresult cuGraphRemoveDependencies_v2(CUgraph handle, const CUgraphNode* from,
                                                  const CUgraphNode* to, const CUgraphEdgeData*,
                                                  size_t count) {
  return cuGraphRemoveDependencies(handle, from, to, count);
}
#endif

CUDA_EXPORT CUresult cuGraphRetainUserObject(CUgraph handle, CUuserObject object, unsigned int count, unsigned int flags) {
  return call_on_graph<Graph>(handle, [&](Graph& graph) {
    if (flags > CU_GRAPH_USER_OBJECT_MOVE) return CUDA_ERROR_INVALID_VALUE;
    return graph.user_objects.add(object, count, flags == CU_GRAPH_USER_OBJECT_MOVE);
  });
}

CUDA_EXPORT CUresult cuGraphReleaseUserObject(CUgraph handle, CUuserObject object, unsigned int count) {
  return call_on_graph<Graph>(handle, [&](Graph& graph) { return graph.user_objects.remove(object, count); });
}
