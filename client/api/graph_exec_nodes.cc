// Changes of single nodes of executable graphs (client/graphs/graph_exec.h).
#include <utility>

#include "client/api/graph.h"
#include "client/api/host_function.h"
#include "client/graphs/graph_exec.h"
#include "protocol/driver/exports.h"
#include "protocol/wire/graphs.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

// Sets new work for a node of an executable graph, in the context `given` or the current one.
template <class Make>
CUresult set(CUgraphExec handle, CUgraphNode node, CUgraphNodeType type, CUcontext given, Make&& make) {
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
    wire::Buffer reply;
    if (result == CUDA_SUCCESS) {
      result = exec->session->call(
          static_cast<uint16_t>(wire::Command::set_graph_node), context,
          [&](wire::Writer& body) {
            body.put(wire::SetGraphNode{exec->handle, number, 0});
            body.put_bytes(record.data(), record.size());
          },
          reply);
    }
    if (result == CUDA_SUCCESS) {
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
CUresult set_child(CUgraphExec handle, CUgraphNode given, CUgraph child_handle) {
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
    if (!embedded || !child || embedded->graph->nodes.size() != child->nodes.size())
      return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < child->nodes.size(); ++i) {
      const GraphNode &before = *embedded->graph->nodes[i], &after = *child->nodes[i];
      if (before.type != after.type || before.dependencies.size() != after.dependencies.size())
        return CUDA_ERROR_INVALID_VALUE;
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
        set(handle, change.node, change.type, change.context, [&](Context*, NodeWork& work) {
          work = std::move(change.work);
          return CUDA_SUCCESS;
        });
    if (changed != CUDA_SUCCESS) return changed;
  }
  return CUDA_SUCCESS;
}

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

}  // namespace

#if CUDA_VERSION >= 12000
CUDA_EXPORT CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                                       const CUDA_KERNEL_NODE_PARAMS* params) {
  return set(exec, node, CU_GRAPH_NODE_TYPE_KERNEL, nullptr,
             [&](Context* context, NodeWork& work) { return make_kernel_work(params, context, work); });
}
CUDA_EXPORT CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                    const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_KERNEL_NODE_PARAMS made = newest(*params);
  return cuGraphExecKernelNodeSetParams_v2(exec, node, &made);
}
#endif
CUDA_EXPORT CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                    const CUDA_MEMCPY3D* params, CUcontext given) {
  return set(exec, node, CU_GRAPH_NODE_TYPE_MEMCPY, given,
             [&](Context* context, NodeWork& work) { return make_copy_work(params, context, work); });
}
CUDA_EXPORT CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                    const CUDA_MEMSET_NODE_PARAMS* params, CUcontext given) {
  return set(exec, node, CU_GRAPH_NODE_TYPE_MEMSET, given,
             [&](Context* context, NodeWork& work) { return make_fill_work(params, context, work); });
}
CUDA_EXPORT CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                  const CUDA_HOST_NODE_PARAMS* params) {
  return set(exec, node, CU_GRAPH_NODE_TYPE_HOST, nullptr,
             [&](Context*, NodeWork& work) { return make_host_work(params, work); });
}
CUDA_EXPORT CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child) {
  return guarded([&] { return set_child(exec, node, child); });
}
CUDA_EXPORT CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
  return set(exec, node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, nullptr,
             [&](Context*, NodeWork& work) { return make_event_work(event, work); });
}
CUDA_EXPORT CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
  return set(exec, node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, nullptr,
             [&](Context*, NodeWork& work) { return make_event_work(event, work); });
}
#if CUDA_VERSION >= 11070
CUDA_EXPORT CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                        const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return set(exec, node, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, nullptr,
             [&](Context*, NodeWork& work) { return make_operations_work(params, work); });
}
#endif

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
