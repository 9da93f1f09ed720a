// Executable graphs: instantiation, update, launch (client/graphs/graph_exec.h).
#include "client/graphs/graph_exec.h"

#include <utility>

#include "client/api/graph.h"
#include "client/graphs/capture.h"
#include "client/graphs/graph_memory.h"
#include "client/memory/compared_copies.h"
#include "client/memory/mirrors.h"
#include "client/streams/host_function.h"
#include "protocol/driver/exports.h"
#include "protocol/wire/graphs.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

constexpr int kMostExecutables = 60'000;  // of this process; the server has its own limit
std::atomic<int> executables{0};

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
    // Before mirrors are locked: calls that hold graph_mutex() look for mirrors.
    std::vector<uint64_t> callbacks;
    if (graph.calls_back) {
      const std::lock_guard lock(graph_mutex());
      callbacks = graph.callbacks();
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
      std::swap(exec->nodes[i].launch, description.nodes[i].launch);
    }
    std::swap(exec->allocated, description.allocated);
    std::swap(exec->freed, description.freed);
    // Earlier launches keep the references that they were launched with.
    if (exec->user_objects) release_when_done(*exec);
    exec->user_objects = std::move(description.user_objects);
    return result;
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
#endif
