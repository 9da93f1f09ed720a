// Executable graphs: instantiating, changing and launching them.
#include "server/softgpu/runtime/api/graph.h"
#include "server/softgpu/runtime/module.h"

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

CUresult instantiate(CUgraphExec* handle, CUgraph graph_handle, uint64_t flags) {
  return call_in_context([&](Context&) {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return call_on_graph<Graph>(graph_handle, [&](Graph& graph) {
      const Ref<GraphExec> exec = make_ref<GraphExec>(flags);
      if (const CUresult result = exec->build(graph); result != CUDA_SUCCESS) return result;
      const uint64_t value = runtime().handles().add(exec);
      if (value == 0) return CUDA_ERROR_OUT_OF_MEMORY;
      *handle = make_handle<CUgraphExec>(value);
      return charged(Cost::graph_instantiate, Cost::graph_instantiate_node, exec->nodes());
    });
  });
}

// Changes the entry that was made from a node.
template <class Body>
CUresult change_entry(CUgraphExec handle, CUgraphNode node, CUgraphNodeType type, const Body& body) noexcept {
  return call_in_context([&](Context&) {
    const Ref<GraphExec> exec = find<GraphExec>(handle);
    if (!exec) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard guard(exec->mutex);
    GraphExec::Entry* entry = exec->find(handle_value(node));
    return entry != nullptr && entry->type == type ? body(*entry) : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult update(CUgraphExec handle, CUgraph graph_handle, uint64_t* mismatch) {
  return call_on_graph<Graph>(graph_handle, [&](Graph& graph) {
    const Ref<GraphExec> exec = find<GraphExec>(handle);
    return exec ? exec->update(graph, mismatch) : CUDA_ERROR_INVALID_VALUE;
  });
}

// Setting parameters keeps the node's attributes.
CUresult change_kernel(GraphExec::Entry& entry, const CUDA_KERNEL_NODE_PARAMS_v1& params, uint64_t handle) {
  Ref<Op> op;
  CUresult result = make_kernel_op(&params, handle, &op);
  if (result == CUDA_SUCCESS) result = copy_kernel_attributes(*entry.prototype, &op);
  if (result == CUDA_SUCCESS) entry.prototype = op;
  return result;
}

bool may_be_disabled(CUgraphNodeType type) {
  return type == CU_GRAPH_NODE_TYPE_KERNEL || type == CU_GRAPH_NODE_TYPE_MEMSET ||
         type == CU_GRAPH_NODE_TYPE_MEMCPY;
}

}  // namespace

CUDA_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  return instantiate(exec, graph, flags);
}
CUDA_EXPORT CUresult cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, CUgraphNode*, char*, size_t) {
  return instantiate(exec, graph, 0);
}
#if CUDA_VERSION >= 12000
CUDA_EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph,
                                                  CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = instantiate(exec, graph, params->flags);
  params->hErrNode_out = nullptr;
  params->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return result;
}
#endif

CUDA_EXPORT CUresult cuGraphExecDestroy(CUgraphExec handle) {
  return call([&] {
    // Launches in flight hold references to what they need.
    return runtime().handles().remove<GraphExec>(handle_value(handle)) ? CUDA_SUCCESS
                                                                       : CUDA_ERROR_INVALID_VALUE;
  });
}

CUDA_EXPORT CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
  return call_on_stream(stream_handle, [&](Stream& stream) {
    const Ref<GraphExec> exec = find<GraphExec>(handle);
    if (!exec) return CUDA_ERROR_INVALID_VALUE;
    return stream.capturing() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : exec->launch(stream);
  });
}

CUDA_EXPORT CUresult cuGraphUpload(CUgraphExec handle, CUstream stream) {
  return call_on_stream(
      stream, [&](Stream&) { return find<GraphExec>(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; });
}

#if CUDA_VERSION >= 12000
CUDA_EXPORT CUresult cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t* flags) {
  return call([&] {
    const Ref<GraphExec> exec = find<GraphExec>(handle);
    if (!exec || flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = exec->flags;
    return CUDA_SUCCESS;
  });
}
#endif

CUDA_EXPORT CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                    const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return change_entry(exec, node, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphExec::Entry& entry) {
    return params == nullptr ? CUDA_ERROR_INVALID_VALUE
                             : change_kernel(entry, *params, handle_value(params->func));
  });
}
#if CUDA_VERSION >= 12000
CUDA_EXPORT CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                                       const CUDA_KERNEL_NODE_PARAMS* params) {
  return change_entry(exec, node, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphExec::Entry& entry) {
    if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_KERNEL_NODE_PARAMS_v1 first{
        params->func,      params->gridDimX,  params->gridDimY,       params->gridDimZ,     params->blockDimX,
        params->blockDimY, params->blockDimZ, params->sharedMemBytes, params->kernelParams, params->extra};
    return change_kernel(entry, first,
                         params->func != nullptr ? handle_value(params->func) : handle_value(params->kern));
  });
}
#endif
CUDA_EXPORT CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                    const CUDA_MEMCPY3D* copy, CUcontext) {
  return change_entry(exec, node, CU_GRAPH_NODE_TYPE_MEMCPY,
                      [&](GraphExec::Entry& entry) { return make_copy_op(copy, &entry.prototype); });
}
CUDA_EXPORT CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                    const CUDA_MEMSET_NODE_PARAMS* fill, CUcontext) {
  return change_entry(exec, node, CU_GRAPH_NODE_TYPE_MEMSET,
                      [&](GraphExec::Entry& entry) { return make_fill_op(fill, &entry.prototype); });
}
CUDA_EXPORT CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                  const CUDA_HOST_NODE_PARAMS* host) {
  return change_entry(exec, node, CU_GRAPH_NODE_TYPE_HOST,
                      [&](GraphExec::Entry& entry) { return make_host_op(host, &entry.prototype); });
}
CUDA_EXPORT CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                        const CUDA_BATCH_MEM_OP_NODE_PARAMS* batch) {
  return change_entry(exec, node, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
                      [&](GraphExec::Entry& entry) { return make_batch_op(batch, &entry.prototype); });
}
CUDA_EXPORT CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec handle, CUgraphNode node,
                                                        CUgraph child_handle) {
  return call_on_graph<GraphNode>(node, [&](GraphNode& embedding) {
    const Ref<GraphExec> exec = find<GraphExec>(handle);
    const Ref<Graph> child = find<Graph>(child_handle);
    if (!exec || !child || !embedding.child) return CUDA_ERROR_INVALID_VALUE;
    return exec->update_child(*embedding.child, *child);
  });
}
CUDA_EXPORT CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
  return change_entry(exec, node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, [&](GraphExec::Entry& entry) {
    if (!find<Event>(event)) return CUDA_ERROR_INVALID_HANDLE;
    entry.event = handle_value(event);
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
  return change_entry(exec, node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, [&](GraphExec::Entry& entry) {
    if (!find<Event>(event)) return CUDA_ERROR_INVALID_HANDLE;
    entry.event = handle_value(event);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuGraphNodeSetEnabled(CUgraphExec handle, CUgraphNode node, unsigned int enabled) {
  return call([&] {
    const Ref<GraphExec> exec = find<GraphExec>(handle);
    if (!exec) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard guard(exec->mutex);
    GraphExec::Entry* entry = exec->find(handle_value(node));
    if (entry == nullptr || !may_be_disabled(entry->type)) return CUDA_ERROR_INVALID_VALUE;
    entry->enabled = enabled != 0;
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuGraphNodeGetEnabled(CUgraphExec handle, CUgraphNode node, unsigned int* enabled) {
  return call([&] {
    const Ref<GraphExec> exec = find<GraphExec>(handle);
    if (!exec || enabled == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard guard(exec->mutex);
    const GraphExec::Entry* entry = exec->find(handle_value(node));
    if (entry == nullptr || !may_be_disabled(entry->type)) return CUDA_ERROR_INVALID_VALUE;
    *enabled = entry->enabled ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode* error_node,
                                       CUgraphExecUpdateResult* answer) {
  uint64_t mismatch = 0;
  const CUresult result = update(exec, graph, &mismatch);
  if (error_node != nullptr) *error_node = make_handle<CUgraphNode>(mismatch);
  if (answer != nullptr) {
    *answer =
        result == CUDA_SUCCESS ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  }
  return result;
}
#if CUDA_VERSION >= 12000
CUDA_EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph,
                                          CUgraphExecUpdateResultInfo* info) {
  if (info == nullptr) return CUDA_ERROR_INVALID_VALUE;
  info->errorFromNode = nullptr;
  return cuGraphExecUpdate(exec, graph, &info->errorNode, &info->result);
}
#endif
