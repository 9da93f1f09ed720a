// The operations on graph nodes, for each kind (graph_node_kinds.h): adding a node, reading and changing its
// work, also in executable graphs. Used by graph_nodes.cc and graph_generic.cc. Any thread.
#pragma once
#include "client/api/graph_node_kinds.h"

namespace gpupool::client {

// A function's parameters behind the node's place: none, the kind's own, or these and the context.
inline CUcontext named_context() {
  return nullptr;
}
template <class Params>
CUcontext named_context(Params) {
  return nullptr;
}
template <class Params>
CUcontext named_context(Params, CUcontext context) {
  return context;
}

template <class NodeKind, class... Params>
CUcontext context_of_new([[maybe_unused]] Params... params) {
  if constexpr (requires { NodeKind::context_of(params...); })
    return NodeKind::context_of(params...);
  else
    return named_context(params...);
}

template <class NodeKind, class... Params>
CUresult make_work(const NodePlace& place, NodeWork& work, Params... params) {
  return NodeKind::make(place, work, params...);
}
template <class NodeKind, class Params>
CUresult make_work(const NodePlace& place, NodeWork& work, Params params, CUcontext) {
  return NodeKind::make(place, work, params);
}

// Adds a node with the work that `make` returns. Its context is `given` or, if null, the current one, if any.
template <class Make>
CUresult add_made(CUgraphNode* out, CUgraph handle, const CUgraphNode* dependencies, size_t count,
                  CUgraphNodeType type, CUcontext given, Make&& make) {
  return on_graph(handle, [&](Graph& graph) -> CUresult {
    if (!out || (count != 0 && !dependencies)) return CUDA_ERROR_INVALID_VALUE;
    std::vector<GraphNode*> before;
    for (size_t i = 0; i < count; ++i) {
      GraphNode* const node = find_node(dependencies[i]);
      if (!node || node->graph != &graph) return CUDA_ERROR_INVALID_VALUE;
      before.push_back(node);
    }
    NodePlace place{nullptr, &graph};
    if (const CUresult result = context_for(given, &place.context); given && result != CUDA_SUCCESS)
      return result;
    NodeWork work;
    if (const CUresult result = make(place, work); result != CUDA_SUCCESS) return result;
    GraphNode* const node = graph.add(type, Session::handle_of(place.context), std::move(work), before);
    if (!node) return CUDA_ERROR_OUT_OF_MEMORY;
    *out = node_handle(*node);
    return CUDA_SUCCESS;
  });
}

template <class NodeKind, class... Params>
CUresult add_node(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                  Params... params) {
  return add_made(
      out, graph, dependencies, count, NodeKind::type, context_of_new<NodeKind>(params...),
      [&](const NodePlace& place, NodeWork& work) { return make_work<NodeKind>(place, work, params...); });
}

template <class NodeKind, class T>
CUresult get_params(CUgraphNode handle, T* out) {
  return on_node_of(handle, NodeKind::type, [&](GraphNode& node) -> CUresult {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    NodeKind::read(node, *out);
    return CUDA_SUCCESS;
  });
}

// Sets new work for a node, made in the node's context or, without one, in the current one.
template <class NodeKind, class... Params>
CUresult set_params(CUgraphNode handle, Params... params) {
  return on_node_of(handle, NodeKind::type, [&](GraphNode& node) -> CUresult {
    NodePlace place{nullptr, node.graph};
    (void)context_for(cuda::handle_from_bits<CUcontext>(node.context), &place.context);
    NodeWork work;
    if (const CUresult result = make_work<NodeKind>(place, work, params...); result != CUDA_SUCCESS)
      return result;
    if constexpr (requires { NodeKind::keep(node.work, work); }) NodeKind::keep(node.work, work);
    node.work = std::move(work);
    return CUDA_SUCCESS;
  });
}

template <class NodeKind, class... Params>
CUresult set_params_in_exec(CUgraphExec exec, CUgraphNode node, Params... params) {
  if constexpr (requires { NodeKind::set_in_exec(exec, node, params...); }) {
    return NodeKind::set_in_exec(exec, node, params...);
  } else {
    return set_exec_node(exec, node, NodeKind::type, named_context(params...),
                         [&](Context* context, NodeWork& work) {
                           return make_work<NodeKind>(NodePlace{context, nullptr}, work, params...);
                         });
  }
}

}  // namespace gpupool::client
