// Conditions of graphs, and the bodies of conditional nodes (graphs.h). Executor's thread.
#include <algorithm>
#include <cstring>

#include "protocol/wire/graphs.h"
#include "server/worker/graphs/graph_work.h"
#include "server/worker/graphs/graphs.h"
#include "server/worker/session/session.h"

namespace gpupool::worker {

// Kernels that set a condition have the client's handle of it somewhere in their parameters. Replaces it by
// the device's handle.
CUresult Graphs::translate_conditions(Graph& graph, uint32_t level, NodeWork& work) {
  Graph& root = graph.root ? *graph.root : graph;
  const std::span<std::byte> parameters = work.parameters();
  if (root.conditions.empty()) return CUDA_SUCCESS;
  for (size_t at = 0; at + sizeof(uint64_t) <= parameters.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, &parameters[at], sizeof word);
    const auto found = root.conditions.find(word);
    if (found == root.conditions.end()) continue;
    if (const CUresult result = use_condition(root, found->second, graph.root ? graph.level : level);
        result != CUDA_SUCCESS)
      return result;
    std::memcpy(&parameters[at], &found->second.made, sizeof word);
  }
  return CUDA_SUCCESS;
}

CUresult Graphs::keep_condition(Graph& graph, const NodeWork& work) {
  return graph.conditions.try_emplace(work.condition.handle, Condition{work.condition, work.context}).second
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_HANDLE;
}

// A condition belongs to one graph on the device, and its value is lost at the end of a launch of that graph.
// So no client node may come between a kernel that sets the condition and the conditional node.
CUresult Graphs::use_condition(Graph& root, Condition& condition, uint32_t level) {
#if CUDA_VERSION >= 12030
  if (condition.made != 0) return condition.level == level ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
  if (root.is_executable) return CUDA_ERROR_INVALID_VALUE;  // conditions are only created with the graph
  const DeviceApi& api = session_.api;
  if (!api.cuGraphConditionalHandleCreate) return CUDA_ERROR_NOT_SUPPORTED;
  if (root.parts.size() <= level) root.parts.resize(level + 1);
  CUgraph& object = root.parts[level].object;
  CUresult result = object ? CUDA_SUCCESS : api.cuGraphCreate(&object, 0);
  CUgraphConditionalHandle made = 0;
  if (result == CUDA_SUCCESS) {
    result = api.cuGraphConditionalHandleCreate(
        &made, object, condition.context->object, condition.wanted.initial,
        condition.wanted.at_launch != 0 ? CU_GRAPH_COND_ASSIGN_DEFAULT : 0);
  }
  condition.made = made;
  condition.level = level;
  return result;
#else
  return CUDA_ERROR_NOT_SUPPORTED;
#endif
}

CUresult Graphs::add_conditional(Graph& graph, const NodeWork& work, uint32_t level,
                                 std::span<const CUgraphNode> before, CUgraphNode* object) {
#if CUDA_VERSION >= 12030
  Graph& root = graph.root ? *graph.root : graph;
  const auto condition = root.conditions.find(work.conditional.condition);
  if (condition == root.conditions.end()) return CUDA_ERROR_INVALID_VALUE;
  if (!session_.api.cuGraphAddNode_v2) return CUDA_ERROR_NOT_SUPPORTED;
  if (graph.root) level = graph.level;
  if (graphs_.size() + work.bodies.size() > kMaxGraphs) return CUDA_ERROR_OUT_OF_MEMORY;
  for (const uint64_t body : work.bodies) {
    if (graphs_.contains(body) || std::count(work.bodies.begin(), work.bodies.end(), body) != 1)
      return CUDA_ERROR_INVALID_HANDLE;
  }
  if (const CUresult result = use_condition(root, condition->second, level); result != CUDA_SUCCESS)
    return result;
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  params.conditional.handle = condition->second.made;
  params.conditional.type = static_cast<CUgraphConditionalNodeType>(work.conditional.type);
  params.conditional.size = work.conditional.bodies;
  params.conditional.ctx = work.context->object;
  const CUresult result = session_.api.cuGraphAddNode_v2(object, graph.parts[graph.root ? 0 : level].object,
                                                         before.data(), nullptr, before.size(), &params);
  if (result != CUDA_SUCCESS) return result;
  for (size_t i = 0; i < work.bodies.size(); ++i) {
    auto body = std::make_unique<Graph>();
    body->parts[0].object = params.conditional.phGraph_out[i];
    body->root = &root;
    body->level = level;
    graphs_[work.bodies[i]] = std::move(body);
    root.bodies.push_back(work.bodies[i]);
  }
  return CUDA_SUCCESS;
#else
  return CUDA_ERROR_NOT_SUPPORTED;
#endif
}

// Registers the bodies of a conditional node that was not created, so that later commands for them have no
// effect.
bool Graphs::refuse_bodies(Graph& graph, wire::Reader body) {
  const auto head = body.get<wire::GraphConditional>();
  const auto bytes = body.get_bytes(uint64_t{head.bodies} * sizeof(uint64_t));
  if (!body.finished() || head.bodies > wire::kMaxGraphBodies || graphs_.size() + head.bodies > kMaxGraphs)
    return false;
  Graph& root = graph.root ? *graph.root : graph;
  for (uint32_t i = 0; i < head.bodies; ++i) {
    uint64_t number = 0;
    std::memcpy(&number, bytes.data() + i * sizeof number, sizeof number);
    auto made = std::make_unique<Graph>();
    made->root = &root;
    made->first_error = CUDA_ERROR_INVALID_VALUE;
    if (!graphs_.try_emplace(number, std::move(made)).second) return false;
    root.bodies.push_back(number);
  }
  return true;
}

}  // namespace gpupool::worker
