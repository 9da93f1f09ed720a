// Changes of single nodes of executable graphs (client/graphs/graph_exec.h).
#include <utility>

#include "client/api/graph_node_kinds.h"
#include "client/graphs/graph_exec.h"
#include "client/streams/host_function.h"
#include "protocol/driver/exports.h"
#include "protocol/wire/graphs.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

// Only kernel, fill and copy nodes can be disabled.
CUresult on_enabled(CUgraphExec handle, CUgraphNode node,
                    const std::function<CUresult(GraphExec&, GraphExec::Node&)>& body) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    const std::lock_guard lock(graph_mutex());
    GraphExec* const exec = find_exec(handle);
    GraphExec::Node* const known = exec ? exec->find(cuda::handle_bits(node)) : nullptr;
    if (!known || (known->type != CU_GRAPH_NODE_TYPE_KERNEL && known->type != CU_GRAPH_NODE_TYPE_MEMSET &&
                   known->type != CU_GRAPH_NODE_TYPE_MEMCPY)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return body(*exec, *known);
  });
}

// GraphDescription describes the conditions of a graph and of its bodies first.
bool has_conditions(const GraphExec& exec) {
  return !exec.nodes.empty() && exec.nodes.front().kind == wire::GraphNodeKind::condition;
}

}  // namespace

CUresult gpupool::client::set_exec_node(CUgraphExec handle, CUgraphNode node, CUgraphNodeType type,
                                        CUcontext given,
                                        const std::function<CUresult(Context*, NodeWork&)>& make) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
    if (given) {
      if (const CUresult result = context_for(given, &context); result != CUDA_SUCCESS) return result;
    }
    const std::lock_guard lock(graph_mutex());
    GraphExec* const exec = find_exec(handle);
    GraphExec::Node* const known = exec ? exec->find(cuda::handle_bits(node)) : nullptr;
    if (!known || known->type != type) return CUDA_ERROR_INVALID_VALUE;
    GraphNode changed;
    changed.type = type;
    changed.context = context->handle;
    if (const CUresult result = make(context, changed.work); result != CUDA_SUCCESS) return result;
    GraphExec::Node described;
    wire::Buffer record;
    wire::Writer writer(record);
    CUresult result = write_node(writer, &changed, *exec->session, described);
    if (result == CUDA_SUCCESS && described.kind != known->kind) result = CUDA_ERROR_INVALID_VALUE;
    const auto number = static_cast<uint32_t>(known - exec->nodes.data());
    if (result == CUDA_SUCCESS) {
      constexpr auto kCommand = static_cast<uint16_t>(wire::Command::set_graph_node);
      const auto write = [&](wire::Writer& body) {
        body.put(wire::SetGraphNode{exec->handle, number, 0});
        body.put_bytes(record.data(), record.size());
      };
      // Other parameters for the same launch are not refused, unless they name a condition of the graph. XLA
      // sets those of all kernels before each launch.
      wire::Buffer reply;
      const bool only_parameters =
          !described.launch.empty() && described.launch == known->launch && !has_conditions(*exec);
      result = only_parameters ? exec->session->post(kCommand, context, write)
                               : exec->session->call(kCommand, context, write, reply);
    }
    if (result == CUDA_SUCCESS) {
      known->launch = std::move(described.launch);
      std::swap(known->callback, described.callback);
      described.enabled->store(known->enabled->load());
      std::swap(known->enabled, described.enabled);
    }
    if (described.callback != 0) forget_host_functions({described.callback});
    return result;
  });
}

// Sets the work of a child graph's nodes, one by one. The new child must have the same shape, with nodes in
// the same order.
CUresult gpupool::client::node_kinds::child_graph::set_in_exec(CUgraphExec handle, CUgraphNode given,
                                                               CUgraph child_handle) {
  struct Change {
    CUgraphNode node;
    CUgraphNodeType type;
    CUcontext context;
    NodeWork work;
  };
  std::vector<Change> changes;
  const CUresult result = on_node(given, [&](GraphNode& node) -> CUresult {
    const auto* const embedded = std::get_if<ChildWork>(&node.work);
    const Graph* const child = find_graph(child_handle);
    if (!embedded || !child) return CUDA_ERROR_INVALID_VALUE;
    if (embedded->graph->nodes.size() != child->nodes.size()) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    for (size_t i = 0; i < child->nodes.size(); ++i) {
      const GraphNode &before = *embedded->graph->nodes[i], &after = *child->nodes[i];
      if (before.type != after.type || before.dependencies.size() != after.dependencies.size())
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
      if (after.type == CU_GRAPH_NODE_TYPE_GRAPH) return CUDA_ERROR_NOT_SUPPORTED;
      if (after.type == CU_GRAPH_NODE_TYPE_EMPTY) continue;
      changes.push_back(
          {node_handle(before), after.type, cuda::handle_from_bits<CUcontext>(after.context), after.work});
    }
    return CUDA_SUCCESS;
  });
  if (result != CUDA_SUCCESS) return result;
  for (Change& change : changes) {
    const CUresult changed =
        set_exec_node(handle, change.node, change.type, change.context, [&](Context*, NodeWork& work) {
          work = std::move(change.work);
          return CUDA_SUCCESS;
        });
    if (changed != CUDA_SUCCESS) return changed;
  }
  return CUDA_SUCCESS;
}

CUDA_EXPORT CUresult cuGraphNodeSetEnabled(CUgraphExec handle, CUgraphNode node, unsigned int enabled) {
  return on_enabled(handle, node, [&](GraphExec& exec, GraphExec::Node& known) -> CUresult {
    const auto number = static_cast<uint32_t>(&known - exec.nodes.data());
    if (known.kind != wire::GraphNodeKind::host && known.kind != wire::GraphNodeKind::empty) {
      wire::Buffer reply;
      const CUresult result =
          exec.session->call(wire::Command::enable_graph_node, nullptr,
                             wire::SetGraphNode{exec.handle, number, enabled != 0 ? 1u : 0u}, reply);
      if (result != CUDA_SUCCESS) return result;
    }
    known.enabled->store(enabled != 0);
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuGraphNodeGetEnabled(CUgraphExec handle, CUgraphNode node, unsigned int* enabled) {
  return on_enabled(handle, node, [&](GraphExec&, GraphExec::Node& known) -> CUresult {
    if (!enabled) return CUDA_ERROR_INVALID_VALUE;
    *enabled = known.enabled->load() ? 1 : 0;
    return CUDA_SUCCESS;
  });
}
