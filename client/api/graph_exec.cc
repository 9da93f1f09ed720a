// Executable graphs: instantiation, update, launch (client/graphs/graph_exec.h).
#include "client/graphs/graph_exec.h"

#include <utility>

#include "client/api/graph.h"
#include "client/api/host_function.h"
#include "client/graphs/capture.h"
#include "client/graphs/graph_memory.h"
#include "client/memory/compared_copies.h"
#include "client/memory/mirrors.h"
#include "protocol/driver/exports.h"
#include "protocol/wire/graphs.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

constexpr int kMostExecutables = 60'000;  // of this process; the server has its own limit
std::atomic<int> executables{0};

GraphExec* find_exec(CUgraphExec handle) {
  return handles().find_as<GraphExec>(Kind::graph_exec, cuda::handle_bits(handle));
}

// Returns the program's node with this index in the description; null: none.
CUgraphNode node_of(const GraphDescription& description, uint32_t number) {
  return number < description.nodes.size()
             ? cuda::handle_from_bits<CUgraphNode>(description.nodes[number].node)
             : nullptr;
}

CUresult read_result(const wire::Buffer& reply, wire::GraphResult* result) {
  wire::Reader reader(reply);
  const auto read = reader.get<wire::GraphResult>();
  if (reader.finished()) *result = read;
  return CUDA_SUCCESS;
}

// CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD and _DEVICE_LAUNCH, which cuda.h has since CUDA 12.0.
constexpr uint64_t kUpload = 2, kDeviceLaunch = 4;

// Sets *outcome, if it is not null, to a value of CUgraphInstantiateResult.
CUresult instantiate(CUgraphExec* out, CUgraph handle, uint64_t flags, CUgraphNode* blamed,
                     uint32_t* outcome) {
  constexpr uint64_t kKnown = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | kUpload | kDeviceLaunch |
                              CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* current = nullptr;
    if (const CUresult result = require_context(&session, &current); result != CUDA_SUCCESS) return result;
    if (!out || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
    if ((flags & kDeviceLaunch) != 0) return CUDA_ERROR_NOT_SUPPORTED;
    GraphDescription description;
    {
      const std::lock_guard lock(graph_mutex());
      const Graph* const graph = find_graph(handle);
      if (!graph) return CUDA_ERROR_INVALID_VALUE;
      if (const CUresult result = description.describe(*graph, *current); result != CUDA_SUCCESS)
        return result;
    }
    if (executables.load() >= kMostExecutables) return CUDA_ERROR_OUT_OF_MEMORY;
    session = description.context->session;
    const uint64_t number = mint_graph_number(*session);
    auto made = std::make_unique<GraphExec>();
    GraphExec& exec = *made;
    const uint64_t executable = session->mint(Kind::graph_exec, std::move(made));
    if (executable == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    wire::GraphResult answer{wire::kGraphInstantiateError, wire::kNoGraphNode};
    wire::Buffer reply;
    CUresult result = description.send(number);
    if (result == CUDA_SUCCESS) {
      result = session->call(wire::Command::instantiate_graph, description.context,
                             wire::InstantiateGraph{number, executable, flags}, reply);
      (void)read_result(reply, &answer);
    }
    if (blamed) *blamed = node_of(description, answer.node);
    if (outcome) *outcome = answer.result;
    if (answer.result != wire::kGraphInstantiated) {
      handles().retire(executable);
      return result != CUDA_SUCCESS ? result : Session::failure();
    }
    // The executable graph exists, even if the result is an earlier call's error.
    const std::lock_guard lock(graph_mutex());
    ++executables;
    exec.flags = flags;
    exec.context = description.context->handle;
    exec.nodes = std::exchange(description.nodes, {});
    exec.allocated = std::move(description.allocated);
    exec.freed = std::move(description.freed);
    exec.user_objects = std::move(description.user_objects);
    for (uint32_t i = 0; i < exec.nodes.size(); ++i) {
      if (exec.nodes[i].node != 0) exec.numbers[exec.nodes[i].node] = i;
      exec.calls_back |= exec.nodes[i].callback != 0;
    }
    if (result != CUDA_SUCCESS) {
      (void)session->post(wire::Command::destroy_graph, nullptr, wire::DestroyGraph{executable});
      handles().retire(executable);
      --executables;
      return result;
    }
    *out = cuda::handle_from_bits<CUgraphExec>(executable);
    return CUDA_SUCCESS;
  });
}

// Releases the user object references once every stream that the graph was launched in has passed the launch.
// For a destroyed stream, waits for its context instead.
void release_when_done(GraphExec& exec) {
  const std::shared_ptr<cuda::UserReferences> held = std::move(exec.user_objects);
  for (const uint64_t handle : std::exchange(exec.launched_in, {})) {
    const bool null_stream = cuda::kind_of(handle) == Kind::context;
    const Object* const stream = null_stream ? nullptr : handles().find(Kind::stream, handle);
    auto* const context = handles().find_as<Context>(Kind::context, null_stream ? handle
                                                                    : stream    ? stream->context
                                                                                : exec.context);
    if (!context) continue;
    if (!null_stream && !stream)
      (void)synchronize_context(*context);
    else
      (void)run_in_stream(*context->session, *context,
                          cuda::handle_from_bits<CUstream>(null_stream ? 0 : handle),
                          [held]() -> uint64_t { return 0; });
  }
}

// Common checks of launch and upload.
template <class Body>
CUresult on_stream(CUgraphExec handle, CUstream stream, Body&& body) noexcept {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_stream_for_work(&session, &context, stream); result != CUDA_SUCCESS)
      return result;
    GraphExec* const exec = find_exec(handle);
    if (!exec) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult refused = capture::refuse(*context, stream); refused != CUDA_SUCCESS) return refused;
    if (exec->session != session) return CUDA_ERROR_NOT_SUPPORTED;
    return body(*exec, *session, context);
  });
}

CUresult launch(CUgraphExec handle, CUstream stream) {
  return on_stream(handle, stream, [&](GraphExec& graph, Session& session, Context* context) -> CUresult {
    const bool has_memory = !graph.allocated.empty() || !graph.freed.empty();
    if (has_memory) {
      const bool again = (graph.flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
      if (const CUresult refused = graph_memory::check_launch(graph.allocated, again);
          refused != CUDA_SUCCESS)
        return refused;
    }
    if (graph.user_objects) {
      const std::lock_guard lock(graph_mutex());
      graph.launched_in.insert(stream ? cuda::handle_bits(stream) : context->handle);
    }
    const wire::LaunchGraph body{graph.handle, cuda::handle_bits(stream)};
    note_host_memory_write(*context, stream);
    CUresult result =
        compared_copies().any() ? compared_copies().before_work(*context, stream) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) return result;
    const auto lock = mirrors().any() ? mirrors().before_work(*context, stream, &result) : Mirrors::Lock();
    if (result != CUDA_SUCCESS) return result;
    if (!graph.calls_back) {
      result = session.post(wire::Command::launch_graph, context, body);
      if (has_memory && result == CUDA_SUCCESS) graph_memory::commit_launch(graph.allocated, graph.freed);
      return result;
    }
    std::vector<uint64_t> callbacks;
    {
      const std::lock_guard lock(graph_mutex());
      callbacks = graph.callbacks();
    }
    result = post_with_host_functions(session, *context, wire::Command::launch_graph, body, callbacks);
    if (result == CUDA_SUCCESS && has_memory) graph_memory::commit_launch(graph.allocated, graph.freed);
    return result;
  });
}

CUresult upload(CUgraphExec handle, CUstream stream) {
  return on_stream(handle, stream, [&](GraphExec& graph, Session& session, Context* context) -> CUresult {
    return session.post(wire::Command::upload_graph, context,
                        wire::LaunchGraph{graph.handle, cuda::handle_bits(stream)});
  });
}

// Compares the nodes of both. *number: the first node that differs.
CUgraphExecUpdateResult compare(const GraphExec& exec, const GraphDescription& description,
                                uint32_t* number) {
  if (exec.nodes.size() != description.nodes.size()) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  for (uint32_t i = 0; i < exec.nodes.size(); ++i) {
    const auto &before = exec.nodes[i], &after = description.nodes[i];
    *number = i;
    if (before.type != after.type) return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    if (before.dependencies != after.dependencies || before.edges != after.edges)
      return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    // Became a copy to or from the host, or ceased to be one.
    if (before.kind != after.kind) return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
  }
  *number = wire::kNoGraphNode;
  return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

CUresult update(CUgraphExec handle, CUgraph graph_handle, CUgraphNode* blamed,
                CUgraphExecUpdateResult* outcome) {
  return guarded([&]() -> CUresult {
    if (blamed) *blamed = nullptr;
    if (outcome) *outcome = CU_GRAPH_EXEC_UPDATE_ERROR;
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    GraphDescription description;
    GraphExec* exec = nullptr;
    wire::GraphResult answer{CU_GRAPH_EXEC_UPDATE_ERROR, wire::kNoGraphNode};
    {
      const std::lock_guard lock(graph_mutex());
      const Graph* const graph = find_graph(graph_handle);
      exec = find_exec(handle);
      if (!graph || !exec) return CUDA_ERROR_INVALID_VALUE;
      auto* const context = handles().find_as<Context>(Kind::context, exec->context);
      if (!context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
      if (const CUresult result = description.describe(*graph, *context); result != CUDA_SUCCESS)
        return result;
      answer.result = compare(*exec, description, &answer.node);
      if (description.context->session != exec->session)
        answer.result = CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
    }
    CUresult result = CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    if (answer.result == CU_GRAPH_EXEC_UPDATE_SUCCESS) {
      Session& session = *exec->session;
      const uint64_t number = mint_graph_number(session);
      wire::Buffer reply;
      answer = {CU_GRAPH_EXEC_UPDATE_ERROR, wire::kNoGraphNode};
      result = description.send(number);
      if (result == CUDA_SUCCESS) {
        result = session.call(wire::Command::update_graph, description.context,
                              wire::UpdateGraph{exec->handle, number}, reply);
        (void)read_result(reply, &answer);
      }
    }
    if (blamed) *blamed = node_of(description, answer.node);
    if (outcome) *outcome = static_cast<CUgraphExecUpdateResult>(answer.result);
    if (answer.result != CU_GRAPH_EXEC_UPDATE_SUCCESS) return result;
    const std::lock_guard lock(graph_mutex());
    for (size_t i = 0; i < exec->nodes.size(); ++i) {
      std::swap(exec->nodes[i].callback, description.nodes[i].callback);
      std::swap(exec->nodes[i].enabled, description.nodes[i].enabled);
    }
    std::swap(exec->allocated, description.allocated);
    std::swap(exec->freed, description.freed);
    // Earlier launches keep the references that they were launched with.
    if (exec->user_objects) release_when_done(*exec);
    exec->user_objects = std::move(description.user_objects);
    return result;
  });
}

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

CUDA_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  return instantiate(exec, graph, flags, nullptr, nullptr);
}
CUDA_EXPORT CUresult cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, CUgraphNode* error_node, char* log,
                                        size_t size) {
  if (error_node) *error_node = nullptr;
  if (log && size != 0) *log = '\0';
  return instantiate(exec, graph, 0, error_node, nullptr);
}
CUDA_EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode* error_node,
                                           char* log, size_t size) {
  return cuGraphInstantiate(exec, graph, error_node, log, size);
}
#if CUDA_VERSION >= 12000
CUDA_EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph,
                                                  CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  params->hErrNode_out = nullptr;
  uint32_t outcome = CUDA_GRAPH_INSTANTIATE_ERROR;
  CUresult result = instantiate(exec, graph, params->flags, &params->hErrNode_out, &outcome);
  params->result_out = static_cast<CUgraphInstantiateResult>(outcome);
  if (result == CUDA_SUCCESS && (params->flags & kUpload) != 0) result = upload(*exec, params->hUploadStream);
  return result;
}
CUDA_EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec* exec, CUgraph graph,
                                                       CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  CUDA_GRAPH_INSTANTIATE_PARAMS own = *params;
  own.hUploadStream = or_per_thread(own.hUploadStream);
  const CUresult result = cuGraphInstantiateWithParams(exec, graph, &own);
  params->hErrNode_out = own.hErrNode_out;
  params->result_out = own.result_out;
  return result;
}
CUDA_EXPORT CUresult cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t* flags) {
  if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
  const GraphExec* const exec = find_exec(handle);
  if (!exec || !flags) return CUDA_ERROR_INVALID_VALUE;
  *flags = exec->flags;
  return CUDA_SUCCESS;
}
#endif

CUDA_EXPORT CUresult cuGraphExecDestroy(CUgraphExec handle) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    GraphExec* const exec = find_exec(handle);
    if (!exec) return CUDA_ERROR_INVALID_VALUE;
    if (exec->user_objects) release_when_done(*exec);
    (void)exec->session->post(wire::Command::destroy_graph, nullptr, wire::DestroyGraph{exec->handle});
    handles().retire(exec->handle);
    --executables;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  return launch(exec, stream);
}
CUDA_EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
  return launch(exec, or_per_thread(stream));
}
CUDA_EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
  return upload(exec, stream);
}
CUDA_EXPORT CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
  return upload(exec, or_per_thread(stream));
}

CUDA_EXPORT CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode* error_node,
                                       CUgraphExecUpdateResult* result) {
  return update(exec, graph, error_node, result);
}
#if CUDA_VERSION >= 12000
CUDA_EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph,
                                          CUgraphExecUpdateResultInfo* info) {
  if (!info) return CUDA_ERROR_INVALID_VALUE;
  info->errorFromNode = nullptr;
  return update(exec, graph, &info->errorNode, &info->result);
}
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
